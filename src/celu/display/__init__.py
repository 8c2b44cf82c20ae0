"""Results in notebooks: tables and figures."""
