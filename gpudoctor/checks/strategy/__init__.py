"""strategy.*: does each parallel strategy train here what one rank alone trains?"""
