"""The rules of autofuse: one file for each family of patterns. autofuse loads every file in this folder."""

if __name__ != "autofuse.rules":
    raise ImportError(
        "Import this folder as `autofuse.rules`. A second copy under another name would register every rule twice."
    )
