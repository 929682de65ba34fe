// The verifier's half of a mirrored tree, under any growth and any commits.

#include <cmath>
#include <limits>
#include <map>

#include "common/base/node_index.h"
#include "common/speculation/round_tree.h"
#include "tests/fuzz/fuzz_target.h"
#include "verifier/session/draft_mirror.h"

namespace tandem::fuzz {
namespace {

constexpr int32_t kMirrorVocabulary = 50;

// Numbers that are near what is valid, or as far from it as they can be.
uint32_t NearNumber(InputReader& reader, uint32_t middle) {
  const uint8_t byte = reader.Byte();
  if (byte >= 0xfc) return UINT32_MAX - (byte - 0xfc);
  return middle + byte % 16 - 4;
}

float ScoreOf(uint8_t byte) {
  switch (byte) {
    case 0xff:
      return std::numeric_limits<float>::quiet_NaN();
    case 0xfe:
      return std::numeric_limits<float>::infinity();
    case 0xfd:
      return -0.5f;
    case 0xfc:
      return std::numeric_limits<float>::denorm_min();
    default:
      return static_cast<float>(byte + 1) / 250.0f;
  }
}

struct MirrorWorld {
  DraftMirror mirror{kMirrorVocabulary};
  uint32_t commit_no = 0;
  uint64_t hash = 1;
  NodeId next_id = 1;
  bool sampled = false;
};

Grow ReadGrow(InputReader& reader, const MirrorWorld& world) {
  const uint8_t flags = reader.Byte();
  Grow grow{.epoch = world.mirror.epoch(),
            .seen_commit = world.commit_no,
            .prefix_hash = world.hash,
            .first_id = world.next_id,
            .exhausted = (flags & 1) != 0};
  if ((flags & 2) != 0) grow.first_id = NearNumber(reader, world.next_id);
  if ((flags & 4) != 0) grow.seen_commit = NearNumber(reader, world.commit_no);
  if ((flags & 8) != 0) grow.epoch = NearNumber(reader, grow.epoch);
  if ((flags & 16) != 0) grow.prefix_hash ^= reader.Byte();
  const uint32_t count = (flags & 32) != 0 ? reader.Byte() * 2 : reader.Below(12);
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t parent = reader.Byte();
    grow.parents.push_back(parent < 64    ? 0
                           : parent < 200 ? grow.first_id + i - 1 - parent % 4
                                          : NearNumber(reader, grow.first_id));
    grow.tokens.push_back(static_cast<TokenId>(reader.Byte()) - 3);
    grow.scores.push_back(ScoreOf(reader.Byte()));
    if (world.sampled && parent % 2 == 0) {
      const TokenId token = grow.tokens.back();
      grow.distributions.push_back({.parent = grow.parents.back(),
                                    .tokens = {token, token + 1},
                                    .probabilities = {0.5f, ScoreOf(reader.Byte())}});
    }
  }
  if ((flags & 64) != 0)
    grow.predictions.push_back(
        {.node = NearNumber(reader, grow.first_id), .acceptance = ScoreOf(reader.Byte())});
  if ((flags & 128) != 0 && !grow.scores.empty()) grow.scores.pop_back();
  return grow;
}

void RequireTree(const DraftMirror& mirror) {
  const CandidateTree& tree = mirror.tree();
  Require(tree.size() <= kMaxTreeNodes && mirror.depth() <= kMaxTreeDepth, "a tree within the bounds");
  for (const TreeNode& node : tree.nodes()) {
    Require(node.token >= 0 && node.token < kMirrorVocabulary, "tokens of the vocabulary");
    Require(node.score > 0 && node.score <= 1, "scores that are probabilities");
    Require(node.parent == 0 || tree.Find(node.parent) != nullptr, "a parent that is there");
  }
}

void RequireSelection(const DraftMirror& mirror, InputReader& reader) {
  const DraftMirror::Selection limits{
      .max_nodes = reader.Byte(), .max_depth = reader.Below(20), .max_children = reader.Below(5)};
  const RoundTree nodes =
      mirror.Select(limits, DraftOrigin::kDrafter, [](const TreeNode& node) { return node.score; });
  Require(nodes.size() <= limits.max_nodes, "as many nodes as asked for");
  std::vector<uint32_t> num_children(nodes.size(), 0);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const uint32_t parent = nodes[i].parent;
    Require(nodes[i].depth <= limits.max_depth && (parent == kRootNode || parent < i), "parents first");
    Require(i == 0 || nodes[i].id > nodes[i - 1].id, "every node once");
    const TreeNode* const sent = mirror.tree().Find(nodes[i].id);
    Require(sent != nullptr && sent->token == nodes[i].token && sent->depth == nodes[i].depth &&
                sent->parent == (parent == kRootNode ? 0 : nodes[parent].id),
            "nodes as they were sent");
    if (parent != kRootNode)
      Require(++num_children[parent] <= limits.max_children, "as many children as asked for");
  }
  mirror.DrawsOf(nodes.nodes());
  mirror.StopDepth(0.3);
}

bool RunDraftMirror(absl::string_view input) {
  InputReader reader(input);
  MirrorWorld world;
  world.mirror.Open(0, world.hash);
  bool grown = false;
  while (!reader.empty()) {
    switch (reader.Below(6)) {
      case 0: {
        world.sampled = reader.Below(2) == 1;
        world.mirror.Open(world.commit_no, world.hash, world.sampled);
        world.mirror.OnOpened(reader.Below(2) == 1);
        world.next_id = 1;
        break;
      }
      case 1: {
        TokenIds tokens;
        // Mostly a way down the tree.
        NodeId at = 0;
        for (int steps = reader.Below(6); steps >= 0; --steps) {
          TokenId token = static_cast<TokenId>(reader.Below(kMirrorVocabulary));
          for (const TreeNode& node : world.mirror.tree().nodes()) {
            if (node.parent != at) continue;
            token = node.token;
            at = node.id;
            break;
          }
          tokens.push_back(token);
        }
        ++world.commit_no;
        world.hash = world.hash * 31 + tokens.size();
        const std::optional<NodeId> root = world.mirror.Commit(tokens, world.commit_no, world.hash);
        if (!root.has_value()) Require(world.mirror.tree().empty(), "a fresh root");
        break;
      }
      case 2:
        RequireSelection(world.mirror, reader);
        break;
      default: {
        const Grow grow = ReadGrow(reader, world);
        const size_t before = world.mirror.tree().size();
        const DraftMirror::GrowReport report = world.mirror.OnGrow(grow);
        if (report.result == DraftMirror::GrowResult::kInvalid ||
            report.result == DraftMirror::GrowResult::kResyncNeeded) {
          Require(!report.violation.empty() && report.violation.size() < 500, "what is wrong is told");
          Require(report.added == 0, "nothing added of what is invalid");
        } else if (report.result == DraftMirror::GrowResult::kAccepted) {
          world.next_id = grow.first_id + static_cast<NodeId>(grow.parents.size());
          grown |= report.added > 0;
        }
        Require(world.mirror.tree().size() == before + report.added, "as many nodes as are told");
      }
    }
    RequireTree(world.mirror);
  }
  return grown;
}

std::vector<std::string> DraftMirrorSeeds() {
  // A growth of three nodes, a selection, a commit of the first, growth that crossed it, another opening.
  const std::string grow("\3\0\3\0\10\120\0\11\60\110\12\100", 12);
  const std::string select("\2\20\4\3", 4), commit("\1\1\5\6", 4), reopen("\0\1\1", 3);
  return {grow, grow + select + commit + grow, grow + commit + std::string("\4\4\3\2\0\1\2\0", 8) + select,
          reopen + grow + select + commit + select, grow + grow + commit + reopen + grow + commit};
}

const Registration kDraftMirror(
    {.name = "draft_mirror", .run = RunDraftMirror, .seeds = DraftMirrorSeeds, .spoilt = 30'000});

}  // namespace
}  // namespace tandem::fuzz
