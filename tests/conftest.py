"""What all tests share: laws have no deadline, for a machine that is busy breaks none."""

from hypothesis import settings

settings.register_profile("unhurried", parent=settings(), deadline=None)
settings.load_profile("unhurried")
