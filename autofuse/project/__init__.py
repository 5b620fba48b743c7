"""Finds the files of a project and their settings, and checks or rewrites them in one run."""
