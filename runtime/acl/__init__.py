"""pyACL: the real module on an Ascend machine, its emulation elsewhere."""
