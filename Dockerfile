# Three images, each with a target: `metaq` (the default: broker, client, command line), `spark` (the same with PySpark and Java),
# `zookeeper` (a server of an ensemble). docker-compose.yml says which one each container runs; docs/docker.md has their sizes.

FROM debian:bookworm-slim AS user
RUN useradd --create-home --uid 10001 metaq && install --directory --owner metaq /data
WORKDIR /data
VOLUME /data


FROM user AS python
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/*
# pip trusts what the system trusts
ENV PATH=/opt/metaq/bin:$PATH \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1
COPY docker/healthy-broker /usr/local/bin/
EXPOSE 8123
CMD ["metaq", "--help"]


# the libraries before the sources, so that a change of the sources does not download them again
FROM python AS libraries
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /usr/src/metaq
COPY docker/requirements.lock docker/requirements-spark.lock ./
RUN python3 -m venv /opt/metaq && pip install --require-hashes --requirement requirements.lock


FROM libraries AS sources
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY coordination coordination
COPY broker broker
COPY client client
COPY spark_connector spark_connector
COPY metaq metaq


FROM sources AS built
# nothing installs into the image after this
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes setuptools pip


FROM libraries AS spark
# Java's packages link their manuals, and slim images may have no directory for these
RUN mkdir --parents /usr/share/man/man1 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*
RUN pip install --require-hashes --requirement requirements-spark.lock
COPY --from=sources /usr/src/metaq .
RUN pip install --no-deps --no-build-isolation .
USER metaq
WORKDIR /data


FROM user AS java
RUN mkdir --parents /usr/share/man/man1 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*


# Maven checks each jar against the checksum that the repository has for it
FROM java AS jars
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends maven
WORKDIR /usr/src/zookeeper
COPY docker/zookeeper/pom.xml .
ARG ZOOKEEPER_VERSION=3.9.6
RUN mvn --batch-mode --quiet --strict-checksums dependency:copy \
      -Dzookeeper.version=$ZOOKEEPER_VERSION -DoutputDirectory=/opt/zookeeper


FROM java AS zookeeper
COPY --from=jars /opt/zookeeper /opt/zookeeper
COPY docker/zookeeper/logback.xml /opt/zookeeper/
COPY docker/zookeeper/zookeeper-server docker/zookeeper/healthy-zookeeper /usr/local/bin/
USER metaq
# clients, followers, election
EXPOSE 2181 2888 3888
CMD ["zookeeper-server"]


FROM python AS metaq
COPY --from=built /opt/metaq /opt/metaq
USER metaq
