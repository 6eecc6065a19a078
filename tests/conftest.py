"""What all tests share: the stand-in driver, loaded before anything else."""

pytest_plugins = ["tests.standin.fixtures"]
