"""The protocol of broker sets as a model: every order of events for small sets, with the product's own rules."""
