"""igrad: how much gradient traffic can be delayed, packed and shrunk without the model noticing?"""
