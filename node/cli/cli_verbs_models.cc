// The verbs about models' names: those of hubs, of the catalogue, of this machine's own.
#include "CLI/CLI.hpp"
#include "node/cli/cli_options.h"

namespace strata {
namespace {

constexpr char kPullFooter[] = R"(
Examples:
  strata pull hf:org/repo                      the best quant below Q8_0, or Q4_K_M
  strata pull hf:org/repo:Q5_K_M
  strata pull hf:org/repo/folder/file.gguf
  strata pull qwen3-8b                         a name of the catalogue: strata models --catalog
  strata pull ollama:llama3.2:1b
  strata pull https://example.org/model.gguf

Prints the path of the model's file, or of its first one, to stdout. What another program has here
already (Hugging Face's cache, Ollama, LM Studio, llama.cpp) is used where it is. Files are kept in
$XDG_CACHE_HOME/strata/models or ~/.cache/strata/models; after an interrupt the next pull goes on
where the last one ended. HF_TOKEN, or the file that 'hf auth login' writes, is for private and gated
repositories; HF_ENDPOINT names another hub, https_proxy a proxy.)";

constexpr char kModelsFooter[] = R"(
Examples:
  strata models
  strata models --catalog                short names, and what fits this cluster
  strata models search qwen3 coder       what Hugging Face has in GGUF

Looks where Strata, Hugging Face's programs, Ollama, LM Studio and llama.cpp keep their files, on
every node of the cluster. FITS is what 'strata plan' says: the tokens a second that it predicts for
one request, or the memory that is missing. What is not planned within ten seconds is "?".)";

constexpr char kSearchFooter[] = R"(
Examples:
  strata models search qwen3 coder
  strata models search llama --count 20 --json

FITS names the best quant that fits in three quarters of the cluster's free memory. HF_TOKEN,
HF_ENDPOINT and https_proxy count as for 'strata pull'.)";

constexpr char kRemoveFooter[] = R"(
Examples:
  strata rm hf:org/repo:Q5_K_M
  strata rm qwen3-8b --yes

Removes what Strata has fetched to this machine. What Hugging Face's programs, Ollama, LM Studio or
llama.cpp have is theirs: the error says how they remove it. A model that is loaded stays.)";

constexpr char kAliasFooter[] = R"(
Examples:
  strata alias fast hf:org/repo:Q4_K_M
  strata alias mine ~/models/model.gguf
  strata alias                           lists them
  strata alias --remove fast

An alias is for run, load, unload, plan, pull and rm on this machine, and for the API where its node
has the model's file. They are kept in aliases.json in the data dir.)";

constexpr char kCacheFooter[] = R"(
Examples:
  strata cache show                      what each node keeps, and of which model
  strata cache clear                     of all models
  strata cache clear qwen3-8b

Nodes keep processed prompts on their disks, encrypted, so that a prompt that comes again need not
be processed again: also after its model was unloaded, or the node restarted. 'strata node
--kv-cache-disk' sets how much, and 0 turns it off. Those of a token are unreadable once the token
is revoked; 'strata rm' clears those of the model. Sequences in memory are forgotten, too.)";

}  // namespace

void AddPull(CLI::App* app, PullVerbOptions* options) {
  CLI::App* verb = app->add_subcommand("pull", "Fetch a model by its name");
  verb->footer(kPullFooter);
  verb->add_option("model", options->model,
                   "hf:ORG/REPO[:QUANT], ollama:NAME[:TAG], an address, an alias, or a name of the "
                   "catalogue")
      ->required()
      ->type_name("NAME");
  verb->add_flag("--offline", options->offline, kOfflineHelp);
  verb->add_option("--data-dir", options->data_dir, "The data dir that has the aliases")
      ->type_name("DIR");
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddModels(CLI::App* app, ModelsOptions* options, ModelsSearchOptions* search) {
  CLI::App* verb =
      app->add_subcommand("models", "List models that are here, and whether the cluster fits them");
  verb->footer(kModelsFooter);
  AddClient(verb, &options->client);
  verb->add_flag("--catalog,--catalogue", options->catalogue,
                 "List well-known models by their short names instead");
  verb->add_flag("--json", options->json, "Print JSON");
  CLI::App* find = verb->add_subcommand("search", "Find models in GGUF on Hugging Face");
  find->footer(kSearchFooter);
  find->add_option("words", search->words, "What their names have")
      ->required()
      ->check(Utf8())
      ->type_name("WORD");
  find->add_option("--count", search->count, "How many, the most fetched first")
      ->check(Between(1, kFoundModelsMax))
      ->capture_default_str()
      ->type_name("N");
  find->add_flag("--offline", search->offline, "Ask nobody outside: this is an error then");
  AddClient(find, &search->client);
  find->add_flag("--json", search->json, "Print JSON");
}

void AddRemove(CLI::App* app, RemoveOptions* options) {
  CLI::App* verb = app->add_subcommand("rm", "Remove a model that Strata has fetched");
  verb->footer(kRemoveFooter);
  verb->add_option("model", options->model, "Its name, as strata models shows it, or its file")
      ->required()
      ->type_name("NAME");
  verb->add_flag("--yes", options->yes, "Do not ask");
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
}

void AddCache(CLI::App* app, CacheVerbOptions* options) {
  CLI::App* verb = app->add_subcommand("cache", "Show or clear the prompts that nodes keep");
  verb->footer(kCacheFooter);
  verb->require_subcommand(1);
  CLI::App* show = verb->add_subcommand("show", "What each node keeps on its disk");
  AddClient(show, &options->client);
  show->add_flag("--json", options->json, "Print JSON");
  CLI::App* clear = verb->add_subcommand("clear", "Have all nodes forget them");
  clear->add_option("model", options->model, "Only this model's, as 'strata cache show' names it")
      ->check(Utf8())
      ->type_name("MODEL");
  AddClient(clear, &options->client);
  clear->add_flag("--json", options->json, "Print JSON");
}

void AddAlias(CLI::App* app, AliasOptions* options) {
  CLI::App* verb = app->add_subcommand("alias", "Give a model a name of your own");
  verb->footer(kAliasFooter);
  CLI::Option* name = verb->add_option("name", options->name, "The alias")->type_name("ALIAS");
  CLI::Option* model =
      verb->add_option("model", options->model, "What it stands for: a model's name or file")
          ->type_name("MODEL");
  name->needs(model);
  verb->add_option("--remove", options->remove, "Remove this one")
      ->excludes(name)
      ->type_name("ALIAS");
  AddClient(verb, &options->client);
  verb->add_flag("--json", options->json, "Print JSON");
}

}  // namespace strata
