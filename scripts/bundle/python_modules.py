# Copies what the process that renders templates loads of Python, for it may load nothing later:
# python_modules.py JINJA_TEMPLATE_PY FOLDER
import os
import runpy
import shutil
import sys

template, folder = sys.argv[1:]
runpy.run_path(template)
# The innermost folder first: lib-dynload is one of its own.
roots = sorted((os.path.realpath(root) for root in sys.path if root), key=len, reverse=True)
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file is None or name in ("__main__", "site", "sitecustomize"):
        continue
    root = next(root for root in roots if file.startswith(root + os.sep))
    target = os.path.join(folder, os.path.relpath(file, root))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(file, target)
    print(file)
