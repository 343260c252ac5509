"""1.x's replication: from an asynchronous master, to a synchronous slave, and the plugin options that turn it on."""
