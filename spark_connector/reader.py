"""placeholder while client lands"""

from pyspark.sql.datasource import DataSourceReader


class MetaqReader(DataSourceReader): ...
