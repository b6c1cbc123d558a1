from hypothesis import settings

# The same examples in every run, and no limit that a busy machine could break. Here, so that it is in force before any
# test is read: a test takes the settings of the time when it is decorated.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
