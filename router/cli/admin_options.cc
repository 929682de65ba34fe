#include "router/cli/admin_options.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {
namespace {

constexpr char kTenantExamples[] = R"(Examples:
  tandem tenants list
  tandem tenants swap acme code --running
  tandem tenants set acme --canary math --canary-percent 10
  tandem tenants set acme --policy off
  tandem tenants set beta --tenant-token "$BETA_TOKEN" --weight 2 --tokens-per-minute 60000

The caller's token (--token or TANDEM_TOKEN) must be that of a tenant with `admin: true`. Changes apply from the
next request on; docs/operate/operations.md has recipes.)";

constexpr char kDrafterExamples[] = R"(Examples:
  tandem drafters list
  tandem drafters set code --address drafter-1:7003 --draft-model draft-code
  tandem drafters drain code
  tandem drafters drain code --undo
  tandem drafters watch --json
  tandem drafters load acme-2026-11 --name acme --replace --endpoint drafter-1:7003
  tandem drafters unload acme --endpoint drafter-1:7003

`load` and `unload` talk to a drafter, not to a router. It loads draft models only from its --models-folder. With
TLS, the caller needs a certificate with the role operator. Routers that the drafter registers with are notified.)";

constexpr char kVerifierExamples[] = R"(Examples:
  tandem verifiers list
  tandem verifiers add llama verifier-1:7002
  tandem verifiers remove llama verifier-0:7002

Requests that run on a removed verifier go on there; `tandem servers` shows how many.)";

constexpr char kModelsExamples[] = R"(Examples:
  tandem models list --endpoint verifier-0:7002
  tandem models load qwen-1b --name qwen --endpoint verifier-0:7002
  tandem models unload qwen --endpoint verifier-0:7002

The verifier loads models only from its --models-folder. With TLS, the caller needs a certificate with the role
operator. Routers that the verifier registers with are notified; for other routers, use `tandem verifiers add`.)";

constexpr char kAdaptersExamples[] = R"(Examples:
  tandem adapters list --endpoint verifier-0:7002
  tandem adapters load acme-2026-11 --name acme --endpoint verifier-0:7002
  tandem adapters unload acme --endpoint verifier-0:7002

The verifier loads adapters (LoRA, in PEFT's format) only from its --adapters-folder. With TLS, the caller needs a
certificate with the role operator. Routers notice the change within seconds.)";

using Action = AdminCommand::Action;
using Kind = AdminCommand::Kind;

// A subcommand that stands for an action; its flags are the caller's to add.
template <class Command>
CLI::App* AddAction(CLI::App* app, Command* command, typename Command::Action action, const std::string& name,
                    const std::string& help, const std::function<void(CLI::App*)>& add_connection) {
  CLI::App* added = app->add_subcommand(name, help);
  added->parse_complete_callback([command, action] { command->action = action; });
  added->add_flag("--json", command->json, "Print JSON")->group("Output");
  add_connection(added);
  return added;
}

// An option that sets a field of a configuration when it is given.
template <class T, class Set>
void AddSetting(CLI::App* app, AdminCommand* command, const std::string& flag, const std::string& field,
                Set set, const std::string& help) {
  app->add_option_function<T>(
         flag,
         [command, field, set](const T& value) {
           command->fields.push_back(field);
           set(value);
         },
         help)
      ->group("Settings (settings not given keep their values)");
}

void AddNames(CLI::App* app, AdminCommand* command, const std::string& flag, const std::string& field,
              google::protobuf::RepeatedPtrField<std::string>* names, const std::string& help) {
  AddSetting<std::string>(
      app, command, flag, field,
      [names](const std::string& value) {
        names->Clear();
        for (const std::string& name : CLI::detail::split(value, ',')) {
          if (!name.empty()) names->Add(std::string(name));
        }
      },
      help);
}

void AddTenantSettings(CLI::App* app, AdminCommand* command) {
  v1::TenantConfig* tenant = &command->tenant;
  AddSetting<std::string>(
      app, command, "--tenant-token", "token_sha256", [=](const std::string& v) { tenant->set_token(v); },
      "The tenant's new token; the router stores only its digest");
  AddSetting<std::string>(
      app, command, "--tenant-token-sha256", "token_sha256",
      [=](const std::string& v) { tenant->set_token_sha256(v); },
      "The new token's SHA-256 digest in hex, in place of the token");
  AddNames(app, command, "--models", "models", tenant->mutable_models(),
           "Models that the tenant may use, A,B; the first is its default; empty: all");
  AddSetting<std::string>(
      app, command, "--drafter", "drafter", [=](const std::string& v) { tenant->set_drafter(v); },
      "The tenant's drafter; empty: none");
  AddSetting<std::string>(
      app, command, "--partner", "partner", [=](const std::string& v) { tenant->set_partner(v); },
      "Second drafter; its candidates are merged with those of --drafter; empty: none");
  AddSetting<std::string>(
      app, command, "--adapter", "adapter", [=](const std::string& v) { tenant->set_adapter(v); },
      "Adapter for requests with the tenant's default model; empty: none");
  AddNames(app, command, "--allowed-adapters", "allowed_adapters", tenant->mutable_allowed_adapters(),
           "Adapters that requests may name, A,B; empty: all");
  AddSetting<bool>(
      app, command, "--text-drafting", "text_drafting", [=](bool v) { tenant->set_text_drafting(v); },
      "Let drafters with an entirely different vocabulary draft by text for the tenant (true or false)");
  AddSetting<bool>(
      app, command, "--record-traffic", "record_traffic", [=](bool v) { tenant->set_record_traffic(v); },
      "Keep the tenant's prompts and outputs in routers' spools, for drafters to learn from (true or false)");
  app->add_option_function<std::string>(
         "--unknown-fields",
         [=](const std::string& value) {
           command->fields.push_back("unknown_fields");
           tenant->set_unknown_fields(value == "refuse" ? v1::UNKNOWN_FIELDS_REFUSE
                                                        : v1::UNKNOWN_FIELDS_IGNORE);
         },
         "What becomes of unknown fields of HTTP requests: `ignore` or `refuse`")
      ->check(CLI::IsMember({"ignore", "refuse"}))
      ->group("Settings (settings not given keep their values)");
  AddNames(app, command, "--allowed-drafters", "allowed_drafters", tenant->mutable_allowed_drafters(),
           "Drafters that requests may name and `auto` may pick, A,B; empty: all");
  app->add_option_function<std::string>(
         "--policy",
         [=](const std::string& value) {
           static const std::map<std::string, v1::DrafterPolicy> kPolicies = {
               {"auto", v1::DRAFTER_POLICY_AUTO},
               {"pinned", v1::DRAFTER_POLICY_PINNED},
               {"canary", v1::DRAFTER_POLICY_CANARY},
               {"off", v1::DRAFTER_POLICY_OFF}};
           command->fields.push_back("drafter_policy");
           tenant->set_drafter_policy(kPolicies.at(value));
         },
         "Who chooses the drafter: auto, pinned, canary or off")
      ->check(CLI::IsMember({"auto", "pinned", "canary", "off"}))
      ->group("Settings (settings not given keep their values)");
  v1::CanaryConfig* canary = &command->canary;
  AddSetting<std::string>(
      app, command, "--canary", "canary.drafter", [=](const std::string& v) { canary->set_drafter(v); },
      "Drafter to try on a share of the requests (policy canary)");
  AddSetting<double>(
      app, command, "--canary-percent", "canary.percent", [=](double v) { canary->set_percent(v); },
      "Per cent of the requests that the canary gets");
  AddSetting<double>(
      app, command, "--canary-min-share", "canary.min_share", [=](double v) { canary->set_min_share(v); },
      "Roll the canary back if its tokens per round are below this share of the tenant's drafter's; default "
      "0.9");
  AddSetting<uint32_t>(
      app, command, "--canary-min-rounds", "canary.min_rounds",
      [=](uint32_t v) { canary->set_min_rounds(v); }, "Rounds that both need before a verdict; default 200");
  AddSetting<bool>(
      app, command, "--canary-promote", "canary.promote", [=](bool v) { canary->set_promote(v); },
      "Make the canary the tenant's drafter once it is shown to reach that share (true or false)");
  AddSetting<double>(
      app, command, "--canary-max-error", "canary.max_error", [=](double v) { canary->set_max_error(v); },
      "Highest probability that a verdict is wrong; default 0.01");
  AddSetting<uint32_t>(
      app, command, "--canary-max-requests", "canary.max_requests",
      [=](uint32_t v) { canary->set_max_requests(v); },
      "Roll the canary back after this many requests without a verdict; 0: continue the trial");
  AddSetting<std::string>(
      app, command, "--window-policy", "window_policy",
      [=](const std::string& v) { tenant->set_window_policy(v); }, "Window policy; empty: the verifier's");
  AddNames(app, command, "--allowed-window-policies", "allowed_window_policies",
           tenant->mutable_allowed_window_policies(),
           "Window policies that requests may name, A,B; empty: all");
  AddSetting<uint32_t>(
      app, command, "--max-concurrent", "max_concurrent_requests",
      [=](uint32_t v) { tenant->set_max_concurrent_requests(v); },
      "Most requests in flight; 0: no limit of its own");
  AddSetting<uint32_t>(
      app, command, "--max-queued", "max_queued_requests",
      [=](uint32_t v) { tenant->set_max_queued_requests(v); }, "Most requests that wait for a place");
  AddSetting<uint32_t>(
      app, command, "--tokens-per-minute", "tokens_per_minute",
      [=](uint32_t v) { tenant->set_tokens_per_minute(v); },
      "Most tokens per minute, of prompts and outputs; 0: no limit");
  AddSetting<uint32_t>(
      app, command, "--weight", "weight", [=](uint32_t v) { tenant->set_weight(v); },
      "Share of scarce places, relative to the weights of other tenants");
  AddSetting<bool>(
      app, command, "--admin", "admin", [=](bool v) { tenant->set_admin(v); },
      "Allow the tenant to change tenants and drafters (true or false)");
}

void AddDrafterSettings(CLI::App* app, AdminCommand* command) {
  v1::DrafterConfig* drafter = &command->drafter;
  AddSetting<std::string>(
      app, command, "--address", "endpoint", [=](const std::string& v) { drafter->set_endpoint(v); },
      "Address at which verifiers reach the drafter, such as drafter-1:7003");
  AddSetting<std::string>(
      app, command, "--draft-model", "draft_model",
      [=](const std::string& v) { drafter->set_draft_model(v); }, "Name of the draft model at that address");
  AddSetting<bool>(
      app, command, "--trusted", "trusted", [=](bool v) { drafter->set_trusted(v); },
      "Let verifiers rely on the probabilities that the drafter sends (true or false)");
}

void AddVerifierCommands(CLI::App* app, AdminCommand* command,
                         const std::function<void(CLI::App*)>& add_connection) {
  CLI::App* group =
      app->add_subcommand("verifiers", "Show and change the verifiers of a running router's models");
  group->footer(kVerifierExamples);
  group->require_subcommand(1);
  group->parse_complete_callback([command] { command->kind = Kind::kVerifiers; });
  const auto add = [&](Action action, const std::string& name, const std::string& help) {
    return AddAction(group, command, action, name, help, add_connection);
  };
  const auto add_with_names = [&](Action action, const std::string& name, const std::string& help) {
    CLI::App* added = add(action, name, help);
    added
        ->add_option_function<std::string>(
            "MODEL", [command](const std::string& v) { command->verifier.set_model(v); }, "Target model")
        ->required();
    added
        ->add_option_function<std::string>(
            "ADDRESS", [command](const std::string& v) { command->verifier.set_endpoint(v); },
            "Address at which routers reach it: host:port, or dns:///host:port for every address of a name")
        ->required();
  };
  add(Action::kList, "list", "List them");
  add_with_names(Action::kAdd, "add", "Add a verifier to a model");
  add_with_names(Action::kRemove, "remove", "Send no more of a model's requests to a verifier");
  add(Action::kWatch, "watch", "Show the changes made at run time, then every further change as it happens");
}

constexpr absl::string_view kCanaryPrefix = "canary.";

bool IsCanaryField(const std::string& field) {
  return absl::StartsWith(field, kCanaryPrefix);
}

}  // namespace

void AddAdminCommands(CLI::App* app, AdminCommand* command,
                      const std::function<void(CLI::App*)>& add_connection) {
  for (const bool tenants : {true, false}) {
    const std::string what = tenants ? "tenant" : "drafter";
    CLI::App* group =
        app->add_subcommand(what + "s", tenants ? "Show and change tenants of a running router"
                                                : "Show and change drafters of a running router");
    group->footer(tenants ? kTenantExamples : kDrafterExamples);
    group->require_subcommand(1);
    group->parse_complete_callback(
        [command, tenants] { command->kind = tenants ? Kind::kTenants : Kind::kDrafters; });
    const auto add = [&](Action action, const std::string& name, const std::string& help) {
      return AddAction(group, command, action, name, help, add_connection);
    };
    const auto add_named = [&](Action action, const std::string& name, const std::string& help) {
      CLI::App* added = add(action, name, help);
      added->add_option("NAME", command->name, "Name of the " + what)->required();
      return added;
    };
    add(Action::kList, "list", "List them");
    add_named(Action::kGet, "get", "Show one");
    CLI::App* set = add_named(Action::kSet, "set", "Create or change one");
    add_named(Action::kDelete, "delete", "Delete one");
    add(Action::kWatch, "watch", "Show them, then every change as it happens");
    if (tenants) {
      AddTenantSettings(set, command);
      CLI::App* swap = add_named(Action::kSwap, "swap", "Pin the tenant to another drafter");
      swap->add_option("DRAFTER", command->swap_to, "Name of the drafter")->required();
      swap->add_flag("--running", command->running, "Also move requests that are already running");
      CLI::App* forget =
          add_named(Action::kForget, "forget",
                    "Delete the tenant's records and key from a router's spool; repeat it for every router");
      forget->add_option("--request", command->request_id, "Only this request, by its id");
    } else {
      AddDrafterSettings(set, command);
      CLI::App* drain = add_named(Action::kDrain, "drain", "Send no new sessions to the drafter");
      drain->add_flag("--undo", command->undo, "Send sessions to it again");
    }
  }
  AddVerifierCommands(app, command, add_connection);
}

CLI::App* AddModelsCommands(CLI::App* app, ModelsCommand* command,
                            const std::function<void(CLI::App*)>& add_connection) {
  CLI::App* group = app->add_subcommand("models", "Show, load and unload the models of a running verifier");
  group->footer(kModelsExamples);
  group->require_subcommand(1);
  const auto add = [&](ModelsCommand::Action action, const std::string& name, const std::string& help) {
    return AddAction(group, command, action, name, help, add_connection);
  };
  v1::LoadModelRequest* request = &command->load;
  add(ModelsCommand::Action::kList, "list", "List loaded models");
  CLI::App* load = add(ModelsCommand::Action::kLoad, "load", "Load a model and wait until it serves");
  load->add_option_function<std::string>(
          "FOLDER", [request](const std::string& v) { request->set_folder(v); },
          "The model's folder below the verifier's --models-folder")
      ->required();
  load->add_option_function<std::string>(
      "--name", [request](const std::string& v) { request->set_name(v); },
      "Name to serve it under; default: the folder's name");
  load->add_option_function<uint64_t>(
      "--kv-tokens", [request](uint64_t v) { request->set_kv_tokens(v); },
      "KV cache size in tokens; default: the share that a model had at the verifier's start");
  CLI::App* unload =
      add(ModelsCommand::Action::kUnload, "unload", "Stop serving a model and wait until it is unloaded");
  unload->add_option("NAME", command->name, "The model's name")->required();
  return group;
}

CLI::App* AddAdaptersCommands(CLI::App* app, ModelsCommand* command,
                              const std::function<void(CLI::App*)>& add_connection) {
  CLI::App* group =
      app->add_subcommand("adapters", "Show, load and unload the adapters of a running verifier");
  group->footer(kAdaptersExamples);
  group->require_subcommand(1);
  const auto add = [&](ModelsCommand::Action action, const std::string& name, const std::string& help) {
    return AddAction(group, command, action, name, help, add_connection);
  };
  const auto add_model = [command](CLI::App* added) {
    added->add_option_function<std::string>(
        "--model",
        [command](const std::string& v) {
          command->load_adapter.set_model(v);
          command->unload_adapter.set_model(v);
        },
        "Model of the adapter, if the verifier serves several");
  };
  v1::LoadAdapterRequest* request = &command->load_adapter;
  add(ModelsCommand::Action::kListAdapters, "list", "List loaded adapters");
  CLI::App* load =
      add(ModelsCommand::Action::kLoadAdapter, "load", "Load an adapter and wait until requests may name it");
  load->add_option_function<std::string>(
          "FOLDER", [request](const std::string& v) { request->set_folder(v); },
          "The adapter's folder below the verifier's --adapters-folder")
      ->required();
  load->add_option_function<std::string>(
      "--name", [request](const std::string& v) { request->set_name(v); },
      "Name to serve it under; default: the folder's name");
  add_model(load);
  CLI::App* unload = add(ModelsCommand::Action::kUnloadAdapter, "unload",
                         "Refuse new requests for an adapter; running requests go on with it");
  unload
      ->add_option_function<std::string>(
          "NAME", [command](const std::string& v) { command->unload_adapter.set_name(v); },
          "The adapter's name")
      ->required();
  add_model(unload);
  return group;
}

std::function<bool()> AddDraftModelCommands(CLI::App* app, ModelsCommand* command,
                                            const std::function<void(CLI::App*)>& add_connection) {
  CLI::App* group = app->get_subcommand("drafters");
  CLI::App* load = AddAction(group, command, ModelsCommand::Action::kLoadDraft, "load",
                             "Load a draft model at a drafter and wait until it serves", add_connection);
  v1::LoadDraftModelRequest* request = &command->load_draft;
  load->add_option_function<std::string>(
          "FOLDER", [request](const std::string& v) { request->set_folder(v); },
          "The model's folder below the drafter's --models-folder")
      ->required();
  load->add_option_function<std::string>(
      "--name", [request](const std::string& v) { request->set_name(v); },
      "Name to serve it under; default: the folder's name");
  load->add_option_function<std::string>(
      "--model-version", [request](const std::string& v) { request->set_version(v); },
      "Version of the model; default: the one in the folder's draft_card.json");
  load->add_option_function<uint64_t>(
      "--kv-tokens", [request](uint64_t v) { request->set_kv_tokens(v); },
      "KV cache size in tokens; default: the drafter's --kv-tokens");
  load->add_flag_callback(
      "--replace", [request] { request->set_replace(true); },
      "Replace the model with this name; open sessions finish on the old one");
  CLI::App* unload =
      AddAction(group, command, ModelsCommand::Action::kUnloadDraft, "unload",
                "Open no more sessions with a draft model; open sessions go on", add_connection);
  unload
      ->add_option_function<std::string>(
          "NAME", [command](const std::string& v) { command->unload_draft.set_name(v); },
          "The draft model's name")
      ->required();
  return [load, unload] { return load->parsed() || unload->parsed(); };
}

absl::Status FinishAdminCommand(AdminCommand& command) {
  if (command.action != Action::kSet) return absl::OkStatus();
  if (command.fields.empty()) {
    return absl::InvalidArgumentError("nothing to set: expected at least one setting");
  }
  const auto& fields = command.fields;
  for (const std::string& field : fields) {
    if (IsCanaryField(field)) command.canary_fields.push_back(field.substr(kCanaryPrefix.size()));
  }
  const bool sets_canary = !command.canary_fields.empty();
  const bool sets_policy = std::find(fields.begin(), fields.end(), "drafter_policy") != fields.end();
  const bool is_canary = command.tenant.drafter_policy() == v1::DRAFTER_POLICY_CANARY;
  if (sets_canary && sets_policy && !is_canary) {
    return absl::InvalidArgumentError("--canary and its settings: expected --policy canary, or no --policy");
  }
  command.fields.erase(std::remove_if(command.fields.begin(), command.fields.end(), IsCanaryField),
                       command.fields.end());
  if (sets_canary && !sets_policy) {
    command.tenant.set_drafter_policy(v1::DRAFTER_POLICY_CANARY);
    command.fields.push_back("drafter_policy");
  }
  // Another policy ends a trial.
  if (sets_canary || (sets_policy && !is_canary)) command.fields.push_back("canary");
  return absl::OkStatus();
}

}  // namespace tandem::cli
