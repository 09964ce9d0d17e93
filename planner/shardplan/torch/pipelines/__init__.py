"""Plans with pipeline stages: the program cut into stages, inter-stage send/receive, tied weights, schedules."""
