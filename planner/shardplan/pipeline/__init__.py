"""Pipeline parallelism: where a model is cut into stages, the submesh and the plan of each stage, and the bound."""
