"""The broker over HTTP: 1.x's put/get/offset plugin, the operator's dashboard, and the metrics page."""
