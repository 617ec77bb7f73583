#define PY_SSIZE_T_CLEAN
#include "node/chat/jinja_template.h"

#include <Python.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "transport/base/own_program.h"
#include "transport/base/utf8.h"

namespace strata {

extern const char kJinjaTemplatePy[];  // jinja_template.py (CMakeLists.txt)

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kErrorBytesMax = 300;

struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
// REQUIRES, where it is destroyed: the thread holds the interpreter's lock.
using Owned = std::unique_ptr<PyObject, Release>;

// The interpreter's lock.
class InterpreterLock {
 public:
  InterpreterLock() : state_(PyGILState_Ensure()) {}
  ~InterpreterLock() { PyGILState_Release(state_); }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  const PyGILState_STATE state_;
};

PyObject* the_module = nullptr;  // jinja_template.py; constant once it runs

absl::Status Failed(const PyStatus& status) {
  return absl::UnavailableError(
      absl::StrCat("Python cannot be started: ", status.err_msg != nullptr ? status.err_msg : "?"));
}

absl::string_view BytesOf(PyObject* bytes) {
  return {PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes))};
}

// Takes the exception that a call has just raised.
absl::Status TakeError() {
  const Owned error(PyErr_GetRaisedException());
  if (PyErr_GivenExceptionMatches(error.get(), PyExc_MemoryError) != 0) {
    return absl::ResourceExhaustedError("there is not enough memory for it");
  }
  std::string words = Py_TYPE(error.get())->tp_name;
  if (the_module != nullptr) {
    const Owned described(PyObject_CallMethod(the_module, "describe", "O", error.get()));
    if (described != nullptr && PyBytes_Check(described.get())) words = BytesOf(described.get());
  } else if (const Owned text(PyObject_Str(error.get())); text != nullptr) {
    if (const char* utf8 = PyUnicode_AsUTF8(text.get()); utf8 != nullptr) words = utf8;
  }
  PyErr_Clear();
  if (words.size() > kErrorBytesMax) words = words.substr(0, kErrorBytesMax) + "…";
  for (char& c : words) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return absl::InvalidArgumentError(ValidUtf8(words));
}

// The folders that are searched for modules, with colons; no others are.
std::string PythonPath() {
  const std::string& bundle = BundleFolder();
  return bundle.empty() ? STRATA_PYTHON_PATH : absl::StrCat(bundle, "/lib/python");
}

absl::Status StartInterpreter() {
  PyPreConfig before;
  PyPreConfig_InitIsolatedConfig(&before);
  before.utf8_mode = 1;
#ifdef STRATA_ADDRESS_SANITIZER
  before.allocator = PYMEM_ALLOCATOR_MALLOC;  // which it watches
#endif
  if (const PyStatus status = Py_PreInitialize(&before); PyStatus_Exception(status) != 0) {
    return Failed(status);
  }
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.site_import = 0;
  config.write_bytecode = 0;
  config.module_search_paths_set = 1;
  PyStatus status = PyStatus_Ok();
  const std::string path = PythonPath();
  for (const absl::string_view folder : absl::StrSplit(path, ':')) {
    wchar_t* const wide = Py_DecodeLocale(std::string(folder).c_str(), nullptr);
    status = wide == nullptr ? PyStatus_NoMemory()
                             : PyWideStringList_Append(&config.module_search_paths, wide);
    PyMem_RawFree(wide);
    if (PyStatus_Exception(status) != 0) break;
  }
  if (PyStatus_Exception(status) == 0) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  return PyStatus_Exception(status) != 0 ? Failed(status) : absl::OkStatus();
}

absl::Status Start() {
  if (absl::Status status = StartInterpreter(); !status.ok()) return status;
  absl::Status status;
  PyObject* module = nullptr;
  if (const Owned code(Py_CompileString(kJinjaTemplatePy, "jinja_template.py", Py_file_input));
      code != nullptr) {
    module = PyImport_ExecCodeModule("strata_jinja_template", code.get());
  }
  if (module == nullptr) {
    status = absl::UnavailableError(absl::StrCat("Jinja2 cannot be loaded: ", TakeError().message(),
                                                 "; it was looked for in ", PythonPath()));
  }
  the_module = module;
  PyEval_SaveThread();
  return status;
}

Owned TextOf(const std::string& text) {
  return Owned(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

// As Python's own reader of JSON makes them. Null: an exception was raised.
Owned ToPython(const Json& json) {
  switch (json.type()) {
    case Json::value_t::object: {
      Owned dict(PyDict_New());
      for (const auto& [key, value] : json.items()) {
        const Owned name = TextOf(key), item = ToPython(value);
        if (dict == nullptr || name == nullptr || item == nullptr ||
            PyDict_SetItem(dict.get(), name.get(), item.get()) != 0) {
          return nullptr;
        }
      }
      return dict;
    }
    case Json::value_t::array: {
      Owned list(PyList_New(0));
      for (const Json& value : json) {
        const Owned item = ToPython(value);
        if (list == nullptr || item == nullptr || PyList_Append(list.get(), item.get()) != 0) {
          return nullptr;
        }
      }
      return list;
    }
    case Json::value_t::string:
      return TextOf(json.get_ref<const std::string&>());
    case Json::value_t::boolean:
      return Owned(PyBool_FromLong(json.get<bool>() ? 1 : 0));
    case Json::value_t::number_integer:
      return Owned(PyLong_FromLongLong(json.get<int64_t>()));
    case Json::value_t::number_unsigned:
      return Owned(PyLong_FromUnsignedLongLong(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return Owned(PyFloat_FromDouble(json.get<double>()));
    default:
      return Owned(Py_NewRef(Py_None));
  }
}

// What templates need of the interpreter: compiling them, and the errors that they raise.
bool IsAllowed(absl::string_view event) {
  return event == "compile" || event == "exec" || event == "code.__new__" ||
         event == "object.__getattr__" || event == "sys._getframe" || event == "builtins.id";
}

bool Holds(PyObject* object, const char* method, const char* name) {
  const InterpreterLock lock;
  const Owned held(PyObject_CallMethod(object, method, "s", name));
  PyErr_Clear();
  return held.get() == Py_True;
}

int RefuseEvent(const char* event, PyObject* /*arguments*/, void* /*data*/) {
  if (IsAllowed(event)) return 0;
  PyErr_Format(PyExc_PermissionError, "a chat template may not do this: %s", event);
  return -1;
}

}  // namespace

absl::Status StartJinja() {
  static const absl::Status* const status = new absl::Status(Start());
  return *status;
}

void SealJinja() {
  const InterpreterLock lock;
  PySys_AddAuditHook(RefuseEvent, nullptr);
}

struct JinjaTemplate::State {
  PyObject* object = nullptr;  // of jinja_template.py's class Template; owned
};

JinjaTemplate::JinjaTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}

JinjaTemplate::~JinjaTemplate() {
  const InterpreterLock lock;
  Py_DECREF(state_->object);
}

absl::StatusOr<std::unique_ptr<const JinjaTemplate>> JinjaTemplate::Parse(
    absl::string_view source) {
  if (absl::Status status = StartJinja(); !status.ok()) return status;
  const InterpreterLock lock;
  Owned object(PyObject_CallMethod(the_module, "Template", "y#", source.data(),
                                   static_cast<Py_ssize_t>(source.size())));
  if (object == nullptr) return TakeError();
  auto state = std::make_unique<State>();
  state->object = object.release();
  return std::unique_ptr<const JinjaTemplate>(new JinjaTemplate(std::move(state)));
}

bool JinjaTemplate::UsesVariable(const char* name) const {
  return Holds(state_->object, "uses_variable", name);
}

bool JinjaTemplate::UsesField(const char* name) const {
  return Holds(state_->object, "uses_field", name);
}

absl::StatusOr<std::string> JinjaTemplate::Render(const nlohmann::ordered_json& variables,
                                                  absl::Time now) const {
  const InterpreterLock lock;
  const Owned values = ToPython(variables);
  if (values == nullptr) return TakeError();
  const Owned text(PyObject_CallMethod(state_->object, "render", "Od", values.get(),
                                       absl::ToDoubleSeconds(now - absl::UnixEpoch())));
  if (text == nullptr) return TakeError();
  return std::string(BytesOf(text.get()));
}

}  // namespace strata
