"""The rules that come with autofuse: one file per pattern family. Found by walking this folder, listed nowhere."""

if __name__ != "autofuse.rules":
    raise ImportError(
        "Import this folder as `autofuse.rules`: a second copy under another name would register every rule twice."
    )
