#include "node/cli/reference.h"

#include <set>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/cluster_client.h"
#include "node/client/coordinator_client.h"

namespace strata {
namespace {

// Hidden verbs and options have no group.
std::vector<const CLI::App*> ShownVerbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}
std::vector<const CLI::Option*> NamedOptions(const CLI::App& verb) {
  return verb.get_options([](const CLI::Option* option) {
    return !option->get_group().empty() && option->nonpositional();
  });
}
std::vector<const CLI::Option*> Positionals(const CLI::App& verb) {
  return verb.get_options([](const CLI::Option* option) {
    return !option->get_group().empty() && option->get_positional();
  });
}

// --- man pages
// ------------------------------------------------------------------------------------

std::string Roff(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  // A line that begins so would be a request.
  escaped = absl::StrReplaceAll(escaped, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  if (!escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'')) escaped.insert(0, "\\&");
  return escaped;
}

std::string Synopsis(const CLI::App& verb, const std::string& command) {
  std::string text = absl::StrCat(".B ", Roff(command), "\n[OPTIONS]");
  for (const CLI::Option* word : Positionals(verb)) {
    const std::string name = Roff(word->get_type_name());
    absl::StrAppend(&text, word->get_required() ? " " : " [", name,
                    word->get_required() ? "" : "]");
  }
  return text + "\n";
}

void AppendOptions(const CLI::App& verb, std::string* page) {
  for (const CLI::Option* word : Positionals(verb)) {
    absl::StrAppend(page, ".TP\n.I ", Roff(word->get_type_name()), "\n",
                    Roff(word->get_description()), "\n");
  }
  for (const CLI::Option* option : NamedOptions(verb)) {
    const std::string type = option->get_type_name();
    absl::StrAppend(page, ".TP\n\\fB", Roff(option->get_name(false, true)), "\\fR",
                    type.empty() ? "" : absl::StrCat(" \\fI", Roff(type), "\\fR"), "\n",
                    Roff(option->get_description()), "\n");
  }
}

void AppendNotes(const CLI::App& verb, std::string* page) {
  const std::string notes(absl::StripAsciiWhitespace(verb.get_footer()));
  if (notes.empty()) return;
  absl::StrAppend(page, ".SH NOTES\n.nf\n", Roff(notes), "\n.fi\n");
}

std::string PageHead(const std::string& name, const std::string& what) {
  return absl::StrCat(".TH ", Roff(absl::AsciiStrToUpper(name)), " 1 \"\" \"strata ",
                      STRATA_VERSION, "\" \"Strata\"\n.SH NAME\n", Roff(name), " \\- ", Roff(what),
                      "\n.SH SYNOPSIS\n");
}

// --- completions
// ----------------------------------------------------------------------------------

// A verb or an action of one.
struct Command {
  std::string path;  // "key show"; empty: the program
  const CLI::App* app = nullptr;
  std::vector<const CLI::Option*> options;
  std::vector<std::string> words;  // verbs and options that may follow
  std::string names;               // "nodes" or "models", where those may follow; else empty
};

// Options that may follow: its own, and those of `node` where it takes them, too.
std::vector<const CLI::Option*> TakenOptions(const CLI::App& app, const CLI::App& program) {
  std::vector<const CLI::Option*> options = NamedOptions(app);
  if (app.get_prefix_command()) {
    for (const CLI::Option* option : NamedOptions(*program.get_subcommand("node"))) {
      if (app.get_option_no_throw(option->get_name()) == nullptr) options.push_back(option);
    }
  }
  return options;
}

void Collect(const CLI::App& app, const CLI::App& program, const std::string& path,
             std::vector<Command>* to) {
  Command command = {.path = path, .app = &app, .options = TakenOptions(app, program)};
  for (const CLI::App* verb : ShownVerbs(app)) command.words.push_back(verb->get_name());
  for (const CLI::Option* option : command.options) {
    for (const std::string& name : option->get_lnames()) command.words.push_back("--" + name);
  }
  for (const CLI::Option* word : Positionals(app)) {
    if (word->get_type_name() == "NODE") command.names = "nodes";
    if (word->get_type_name() == "MODEL") command.names = "models";
  }
  to->push_back(std::move(command));
  for (const CLI::App* verb : ShownVerbs(app)) {
    Collect(*verb, program,
            path.empty() ? verb->get_name() : absl::StrCat(path, " ", verb->get_name()), to);
  }
}

// The text within '…' of a shell.
std::string InQuotes(const std::string& text, absl::string_view quote) {
  return absl::StrReplaceAll(text, {{"'", quote}});
}

// Lines of a `case` that find the verb in the words so far, and of one that tells what may follow.
struct ShellCases {
  std::string verbs;
  std::string words;
};
ShellCases CasesOf(const std::vector<Command>& commands) {
  ShellCases cases;
  for (const Command& command : commands) {
    if (!command.path.empty()) {
      const bool is_action = absl::StrContains(command.path, ' ');
      absl::StrAppend(&cases.verbs, cases.verbs.empty() ? "" : " | ", "'", is_action ? "" : " ",
                      command.path, "'");
    }
    absl::StrAppend(&cases.words, "    '", command.path, "') list='",
                    absl::StrJoin(command.words, " "), "' names='", command.names, "' ;;\n");
  }
  return cases;
}

constexpr absl::string_view kBash =
    R"sh(# Completions of strata for bash, made by `strata reference bash`.
_strata() {
  local cur=${COMP_WORDS[COMP_CWORD]} verb='' list='' names='' word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$verb $word" in
    @VERBS@) verb="${verb:+$verb }$word" ;;
    esac
  done
  case $verb in
@WORDS@  esac
  list=${list// /$'\n'}
  if [[ -n $names && $cur != -* ]]; then list=$(timeout 2 strata reference "$names" 2>/dev/null); fi
  COMPREPLY=()
  while IFS= read -r word; do
    if [[ -n $word && $word == "$cur"* ]]; then COMPREPLY+=("$(printf %q "$word")"); fi
  done <<<"$list"
}
complete -o default -F _strata strata
)sh";

constexpr absl::string_view kZsh = R"sh(#compdef strata
# Completions of strata for zsh, made by `strata reference zsh`.
local verb='' list='' names='' word
local -a found
for word in ${words[2,CURRENT-1]}; do
  case "$verb $word" in
    @VERBS@) verb="${verb:+$verb }$word" ;;
  esac
done
case $verb in
@WORDS@esac
found=(${(s: :)list})
if [[ -n $names && $PREFIX != -* ]]; then found=("${(@f)$(timeout 2 strata reference $names 2>/dev/null)}"); fi
compadd -a found
if [[ -n $names || $#found -eq 0 ]]; then _files; fi
)sh";

std::string FishCompletions(const std::vector<Command>& commands) {
  std::string text = "# Completions of strata for fish, made by `strata reference fish`.\n";
  for (const Command& command : commands) {
    // Where this one is the last that was typed.
    std::string when = "__fish_use_subcommand";
    if (!command.path.empty()) {
      when.clear();
      for (const absl::string_view verb : absl::StrSplit(command.path, ' ')) {
        absl::StrAppend(&when, when.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", verb);
      }
      for (const CLI::App* action : ShownVerbs(*command.app)) {
        absl::StrAppend(&when, "; and not __fish_seen_subcommand_from ", action->get_name());
      }
    }
    const std::string line = absl::StrCat("complete -c strata -n '", when, "' ");
    for (const CLI::App* verb : ShownVerbs(*command.app)) {
      absl::StrAppend(&text, line, "-f -a ", verb->get_name(), " -d '",
                      InQuotes(verb->get_description(), "\\'"), "'\n");
    }
    for (const CLI::Option* option : command.options) {
      for (const std::string& name : option->get_lnames()) {
        absl::StrAppend(&text, line, "-l ", name, option->get_items_expected_max() > 0 ? " -r" : "",
                        " -d '", InQuotes(option->get_description(), "\\'"), "'\n");
      }
    }
    if (!command.names.empty()) {
      absl::StrAppend(&text, line, "-a '(timeout 2 strata reference ", command.names,
                      " 2>/dev/null)'\n");
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ManPage(const CLI::App& app, const std::string& verb) {
  if (verb.empty()) {
    std::string page = PageHead("strata", "one machine for a large language model, out of several");
    absl::StrAppend(&page, ".B strata\nVERB [OPTIONS]\n.SH DESCRIPTION\n",
                    Roff(app.get_description()), "\n.SH VERBS\n");
    for (const CLI::App* each : ShownVerbs(app)) {
      absl::StrAppend(&page, ".TP\n.B ", Roff(each->get_name()), "\n",
                      Roff(each->get_description()), ": see \\fBstrata\\-", Roff(each->get_name()),
                      "\\fR(1)\n");
    }
    AppendNotes(app, &page);
    return page;
  }
  for (const CLI::App* each : ShownVerbs(app)) {
    if (each->get_name() != verb) continue;
    const std::string command = absl::StrCat("strata ", verb);
    std::string page = PageHead(absl::StrCat("strata-", verb), each->get_description());
    const std::vector<const CLI::App*> actions = ShownVerbs(*each);
    if (actions.empty()) page += Synopsis(*each, command);
    for (const CLI::App* action : actions) {
      absl::StrAppend(&page, action == actions.front() ? "" : ".br\n",
                      Synopsis(*action, absl::StrCat(command, " ", action->get_name())));
    }
    page += ".SH OPTIONS\n";
    AppendOptions(*each, &page);
    for (const CLI::App* action : actions) {
      absl::StrAppend(&page, ".SS ", Roff(absl::StrCat(command, " ", action->get_name())), "\n",
                      Roff(action->get_description()), "\n");
      AppendOptions(*action, &page);
    }
    AppendNotes(*each, &page);
    return absl::StrCat(page, ".SH SEE ALSO\n.BR strata (1)\n");
  }
  return absl::NotFoundError(absl::StrCat("there is no verb '", verb, "' (see strata --help)"));
}

std::string Completions(const CLI::App& app, const std::string& shell) {
  std::vector<Command> commands;
  Collect(app, app, "", &commands);
  if (shell == "fish") return FishCompletions(commands);
  const ShellCases cases = CasesOf(commands);
  return absl::StrReplaceAll(shell == "zsh" ? kZsh : kBash,
                             {{"@VERBS@", cases.verbs}, {"@WORDS@", cases.words}});
}

std::string VerbNames(const CLI::App& app) {
  std::string names;
  for (const CLI::App* verb : ShownVerbs(app)) absl::StrAppend(&names, verb->get_name(), "\n");
  return names;
}

absl::Status PrintNodeNames() {
  auto client = ConnectToCluster({});
  if (!client.ok()) return client.status();
  const auto cluster = (*client)->GetCluster();
  if (!cluster.ok()) return cluster.status();
  std::string names;
  for (const wire::ClusterNode& node : cluster->nodes()) {
    absl::StrAppend(&names, node.record().name(), "\n");
  }
  return WriteToStdout(names);
}

absl::Status PrintModelNames() {
  const std::vector<std::string> here = NamesToMean("", {});
  std::set<std::string> names(here.begin(), here.end());
  if (auto client = CoordinatorClient::Connect({}); client.ok()) {
    if (const auto models = (*client)->ListModels(); models.ok()) {
      for (const wire::ModelStatus& model : models->models()) names.insert(model.name());
    }
  }
  return WriteToStdout(names.empty() ? "" : absl::StrJoin(names, "\n") + "\n");
}

}  // namespace strata
