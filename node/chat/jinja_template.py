# Jinja2 with the settings that Hugging Face's tokenizers give it for chat templates (transformers,
# utils/chat_template_utils.py). jinja_template.cc runs this module in an embedded interpreter; it
# is part of the program.
import datetime
import json
import warnings

# Jinja2 imports these at their first use, when nothing may be imported any more.
import jinja2.constants  # noqa: F401
import jinja2.debug  # noqa: F401
import pprint  # noqa: F401
import textwrap  # noqa: F401
from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

warnings.simplefilter("ignore")  # of what templates compile to


class GenerationTag(Extension):
    """{% generation %}…{% endgeneration %} marks the model's words, for training: shown as they are."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class Environment(ImmutableSandboxedEnvironment):
    """The same answers, without what costs most in long chats."""

    def getattr(self, obj, attribute):
        # A dict has no attributes but its type's: looking for others only raises an exception.
        if type(obj) is dict and not hasattr(dict, attribute):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


environment = Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
)
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = raise_exception


class Template:
    def __init__(self, source):
        tree = environment.parse(source.decode(errors="replace"))
        self.template = environment.from_string(tree)
        # The variables that it looks up, and the names by which it may look into messages.
        self.variables = meta.find_undeclared_variables(tree)
        self.fields = {node.attr for node in tree.find_all(nodes.Getattr)}
        self.fields |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}

    def uses_variable(self, name):
        return name in self.variables

    def uses_field(self, name):
        return name in self.fields

    # `now` is in seconds since 1970. Bytes that are not UTF-8 stay as they are.
    def render(self, variables, now):
        variables["strftime_now"] = datetime.datetime.fromtimestamp(now).strftime
        return self.template.render(variables).encode(errors="surrogateescape")


def describe(error):
    if isinstance(error, RecursionError):
        return b"it nests or recurses too deeply"
    words = str(error.message if isinstance(error, TemplateError) else error)
    if isinstance(error, TemplateSyntaxError):
        words = f"{words} (line {error.lineno})"
    elif not isinstance(error, TemplateError):
        words = f"{type(error).__name__}: {words}"
    return words.encode(errors="replace")


# Has imported and opened what a first prompt needs.
Template(b"{{ strftime_now('%Y') }}{{ [1] | tojson }}").render({}, 0)
try:
    Template(b"{{ 1 + 'a' }}").render({}, 0)
except TypeError as error:
    describe(error)
