"""Looking after a folder of logs.

backup   backup, verify, repair and doctor
"""
