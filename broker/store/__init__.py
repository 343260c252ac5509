"""The store engine: it keeps partition logs on disk. It uses neither the network nor ZooKeeper."""
