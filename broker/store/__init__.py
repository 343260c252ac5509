"""The store engine, which keeps partition logs on disk. The engine uses neither the network nor ZooKeeper."""
