"""A plugin that is a module, made up."""

import types


def module(**contents):
    made = types.ModuleType("gpulayer_mine")
    vars(made).update({"GPULAYER_API": "1.0", **contents})
    return made
