"""temporary"""
def convert(m): return m
