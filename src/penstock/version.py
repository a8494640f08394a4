"""The version of this Penstock."""

VERSION = "0.1.0"
