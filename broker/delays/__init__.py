"""Messages that wait for their time: kept in the store's internal logs, delivered when they are due."""
