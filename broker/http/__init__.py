"""The broker's HTTP interfaces: the plugin of metaq 1.x for put, get and offset; the operators' dashboard; and the
metrics page.
"""
