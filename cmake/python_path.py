# Prints the folders in which the interpreter that runs this has its own modules, Jinja2 and MarkupSafe.
import os
import sysconfig

import jinja2
import markupsafe

stdlib = sysconfig.get_path("stdlib")
folders = [stdlib, os.path.join(sysconfig.get_config_var("DESTSHARED"))]
folders += [os.path.dirname(os.path.dirname(module.__file__)) for module in (jinja2, markupsafe)]
print(":".join(dict.fromkeys(folders)))
