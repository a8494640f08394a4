"""Looking after a folder of logs.

backup   a copy of a store that is in use
verify   checking every byte
repair   moving damaged records aside
doctor   what ``penstock doctor`` reports
"""
