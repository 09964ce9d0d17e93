"""Beyond one mesh: other logical meshes over the same devices, pipeline stages, and sweeps over requests."""
