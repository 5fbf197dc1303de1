"""Independent high-precision references that the tests compare against."""
