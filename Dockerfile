# One image for every role: ZooKeeper server, broker, client, Spark driver. docker-compose.yml says which.
FROM debian:bookworm-slim

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      ca-certificates openjdk-17-jre-headless python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

# pip trusts what the system trusts
ENV PATH=/opt/metaq/bin:$PATH \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# the libraries before the sources, so that a change of the sources does not download them again
WORKDIR /usr/src/metaq
COPY pyproject.toml .
RUN python3 -m venv --upgrade-deps /opt/metaq \
 && python3 -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
print(*project["dependencies"], *project["optional-dependencies"]["spark"], sep="\n")' > requirements.txt \
 && pip install --requirement requirements.txt

COPY README.md LICENSE ./
COPY protocol protocol
COPY coordination coordination
COPY broker broker
COPY client client
COPY spark_connector spark_connector
COPY metaq metaq
RUN pip install --no-deps .

COPY docker/zookeeper-server docker/healthy-broker docker/healthy-zookeeper /usr/local/bin/
COPY docker/log4j2.properties /etc/metaq/

RUN useradd --create-home --uid 10001 metaq && install --directory --owner metaq /data
USER metaq
WORKDIR /data
VOLUME /data

# 8123: broker. 2181, 2888, 3888: ZooKeeper's clients, followers, election.
EXPOSE 8123 2181 2888 3888
ENTRYPOINT []
CMD ["metaq", "--help"]
