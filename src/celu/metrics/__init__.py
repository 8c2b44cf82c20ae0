"""How good scores are: the metrics that training evaluations and `celu evaluate` share."""
