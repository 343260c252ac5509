"""Mutated requests at every port of a broker, before and after a login: nothing may crash, grow or starve others."""
