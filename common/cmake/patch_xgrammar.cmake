# cmake -DSOURCE=DIR -DADDITIONS=DIR -P patch_xgrammar.cmake: adds the files xgrammar_*.inc of the second folder to
# XGrammar's sources in the first. The matcher tells the state that it is in by xgrammar_state_key.inc, in place of a text
# for debugging that nothing of ours reads, and counts its steps and forgets what it needs no more by
# xgrammar_bounds.inc. Masks and edges are serialised by the others.

# Puts AFTER where BEFORE stands in a file, once, unless that has been done.
function(tandem_replace file before after)
  file(READ ${SOURCE}/${file} text)
  string(FIND "${text}" "${after}" patched)
  if(patched GREATER_EQUAL 0)
    return()
  endif()
  string(FIND "${text}" "${before}" found)
  if(found LESS 0)
    message(FATAL_ERROR "${SOURCE}/${file}: not the source that this patch is for, expected: ${before}")
  endif()
  string(LENGTH "${before}" length)
  string(SUBSTRING "${text}" 0 ${found} front)
  math(EXPR behind "${found} + ${length}")
  string(SUBSTRING "${text}" ${behind} -1 back)
  file(WRITE ${SOURCE}/${file} "${front}${after}${back}")
endfunction()

# Counts STEPS behind the text BEFORE.
function(tandem_count file before steps)
  tandem_replace(${file} "${before}" "${before}Step(${steps});\n")
endfunction()

foreach(addition state_key bounds numbers edges masks)
  configure_file(${ADDITIONS}/xgrammar_${addition}.inc ${SOURCE}/cpp/tandem_${addition}.inc COPYONLY)
endforeach()

set(matcher cpp/grammar_matcher.cc)
set(parser cpp/earley_parser.cc)
tandem_replace(${matcher}
  "  std::string _DebugPrintInternalState() const { return PrintStates(); }\n"
  "  std::string _DebugPrintInternalState() const { return StateKey(); }\n#include \"tandem_state_key.inc\"\n")

# What the matcher offers.
tandem_replace(include/xgrammar/matcher.h "#include <cstdint>\n" "#include <cstdint>\n#include <functional>\n")
tandem_replace(include/xgrammar/matcher.h
  "  XGRAMMAR_DEFINE_PIMPL_METHODS(GrammarMatcher);\n"
  "  bool WithinSteps(int64_t most_steps, const std::function<void()>& call);
  static bool CompileWithin(int64_t most_steps, int64_t most_bytes, const std::function<void()>& call);
  int64_t StepsTaken() const;
  std::size_t HistoryBytes() const;
  void Forget();

  XGRAMMAR_DEFINE_PIMPL_METHODS(GrammarMatcher);\n")
tandem_replace(${matcher}
  "std::string GrammarMatcher::FindJumpForwardString() {"
  "bool GrammarMatcher::WithinSteps(int64_t most_steps, const std::function<void()>& call) {
  return pimpl_->WithinSteps(most_steps, call);
}
bool GrammarMatcher::CompileWithin(int64_t most_steps, int64_t most_bytes, const std::function<void()>& call) {
  return Impl::CompileWithin({most_steps, most_bytes}, call);
}
int64_t GrammarMatcher::StepsTaken() const { return pimpl_->StepsTaken(); }
std::size_t GrammarMatcher::HistoryBytes() const { return pimpl_->HistoryBytes(); }
void GrammarMatcher::Forget() { pimpl_->Forget(); }
std::string GrammarMatcher::FindJumpForwardString() {")
tandem_replace(cpp/earley_parser.h "class EarleyParser {\n" "class EarleyParser {\n#include \"tandem_bounds.inc\"\n")
tandem_replace(cpp/earley_parser.h "#include <cstdint>\n" "#include <cstdint>\n#include <numeric>\n")

# Where it takes steps.
tandem_count(cpp/earley_parser.h "  void Enqueue(const ParserState& state) {\n" "1")
tandem_count(cpp/earley_parser.h "  void EnqueueWithoutProcessing(const ParserState& state) {\n" "1")
tandem_count(${parser} "bool EarleyParser::Advance(const uint8_t ch, bool debug_print) {\n" "2")
tandem_count(${parser}
  "  const auto& parent_states_map = rule_id_to_completable_states_[state.rule_start_pos];\n  for (const auto& [ref_id, parent_state] : parent_states_map) {\n    if (ref_id != state.rule_id) {\n      continue;\n    }\n"
  "1")
tandem_replace(${parser} "  // Check all the possible parent states.\n"
  "  Step(rule_id_to_completable_states_[state.rule_start_pos].size() / 16);\n  // Check all the possible parent states.\n")
tandem_count(${parser}
  "  const auto& current_fsm = grammar_->per_rule_fsms[state.rule_id].value();\n"
  "1 + current_fsm.GetFsm().GetFsm().GetEdges(state.element_id).size() / 8")
tandem_replace(${parser}
  "        const auto& parent_states_map = rule_id_to_completable_states_[state.rule_start_pos];\n        std::vector<std::pair<int32_t, ParserState>> to_added_states;\n        for (const auto& parent_state_iter : parent_states_map) {\n          if (parent_state_iter.first != state.rule_id) continue;\n"
  "        const auto& parent_states_map = rule_id_to_completable_states_[state.rule_start_pos];\n        Step(parent_states_map.size() / 16);\n        std::vector<std::pair<int32_t, ParserState>> to_added_states;\n        for (const auto& parent_state_iter : parent_states_map) {\n          if (parent_state_iter.first != state.rule_id) continue;\n          Step(1 + rule_id_to_completable_states_.Back().size() / 8);\n")
tandem_replace(${parser}
  "  // Add the rule reference pairs, and enqueue the epsilon edges.\n"
  "  Step(fsm.GetFsm().GetFsm().GetEdges(state.element_id).size() / 8);\n  // Add the rule reference pairs, and enqueue the epsilon edges.\n")
tandem_replace(${matcher}
  "  while (can_find_next_char) {\n"
  "  while (can_find_next_char && num_accepted_chars < kMostForcedBytes) {\n")

# Masks: the words of a bit set are looked at many at once; lists of tokens are not.
tandem_replace(${matcher}
  "    latest_states_with_masks.push_back(std::make_pair(state, adaptive_token_mask_it));\n"
  "    Step(4 + tokenizer_info_.GetVocabSize() / 2048 + adaptive_token_mask.accepted_indices.size() / 8);\n    latest_states_with_masks.push_back(std::make_pair(state, adaptive_token_mask_it));\n")
tandem_replace(${matcher}
  "    // Examine only the current one ParserState\n"
  "    Step(adaptive_token_mask.rejected_indices.size() / 8);\n    // Examine only the current one ParserState\n")
tandem_replace(${matcher}
  "      const auto cur_token_idx = *token_it++;\n"
  "      const auto cur_token_idx = *token_it++;\n      Step(1);\n")

# What the compiler does for one state of a rule, and for each token there. A parser looks at all rules when it is made,
# and at all states for each rule that it enters.
set(compiler cpp/grammar_compiler.cc)
tandem_count(${compiler}
  "AdaptiveTokenMask GrammarMatcherForTokenMaskCache::GetAdaptiveTokenMask(bool is_root_rule) {\n"
  "64 + tokenizer_info_.GetVocabSize() / 256 + grammar_->NumRules() / 4 + grammar_->complete_fsm.NumStates() / 1024")
tandem_count(${compiler} "      const auto& token = sorted_decoded_vocab[i].second;\n" "1")

# In which order masks are made, until they take too much. Without threads, which would each count for themselves.
tandem_replace(${compiler}
  "  auto root_rule_id = compiled_grammar_impl->grammar->GetRootRuleId();\n"
  "  auto root_rule_id = compiled_grammar_impl->grammar->GetRootRuleId();\n  std::vector<std::pair<ParserState, bool>> states_with_masks;\n")
tandem_replace(${compiler}
  "    for (int i : reachable_states) {\n      cur_stack_element.element_id = i;"
  "    for (int i : std::set<int>(reachable_states.begin(), reachable_states.end())) {\n      cur_stack_element.element_id = i;")
tandem_replace(${compiler}
  "      add_task_adaptive_token_mask(cur_stack_element, rule_id == root_rule_id);\n    }\n  }\n"
  "      states_with_masks.emplace_back(cur_stack_element, rule_id == root_rule_id);\n    }\n  }
  EarleyParser::CompileMasks(states_with_masks.size(), [&](size_t i) {
    const auto& [state, is_root_rule] = states_with_masks[i];
    add_task_adaptive_token_mask(state, is_root_rule);
    if (max_threads_ > 1) return int64_t{0};
    return static_cast<int64_t>(
        sizeof(ParserState) + sizeof(AdaptiveTokenMask) +
        MemorySize(compiled_grammar_impl->adaptive_token_mask_cache[state])
    );
  });\n")
tandem_replace(${compiler} "#include <optional>\n" "#include <optional>\n#include <set>\n")

# The serialised form.
tandem_replace(cpp/fsm.h
  "XGRAMMAR_MEMBER_ARRAY(FSMEdge, &FSMEdge::min, &FSMEdge::max, &FSMEdge::target);\n"
  "XGRAMMAR_MEMBER_ARRAY(FSMEdge, &FSMEdge::min, &FSMEdge::max, &FSMEdge::target);\n\n#include \"tandem_edges.inc\"\n")
tandem_replace(cpp/fsm.h "#include \"xgrammar/exception.h\"\n" "#include \"tandem_numbers.inc\"\n#include \"xgrammar/exception.h\"\n")
tandem_replace(cpp/compiled_grammar_impl.h
  "    &AdaptiveTokenMask::uncertain_indices\n);\n"
  "    &AdaptiveTokenMask::uncertain_indices\n);\n\n#include \"tandem_masks.inc\"\n")

# Its rules share one automaton, which it wrote down, and then read, once for each rule.
tandem_replace(cpp/fsm.cc
  "      : fsm(compact_fsm_with_se.fsm_),\n        start(compact_fsm_with_se.start_),"
  "      : fsm(NullObj{}),\n        start(compact_fsm_with_se.start_),")
tandem_replace(cpp/fsm.cc
  "    if (fsm.IsNull()) {\n      return \"Expect a non-null fsm\";\n    }
    auto in_range = [&](int32_t state) { return state >= 0 && state < fsm.NumStates(); };
    if (!in_range(start) || !std::all_of(end_index.begin(), end_index.end(), in_range)) {
      return \"The start or end state is out of range\";\n    }\n"
  "    if (!fsm.IsNull()) {\n      return \"Expect the automaton that all rules share\";\n    }\n")
tandem_replace(cpp/fsm.h
  "  std::string ToString() const;

  /*!
   * \\brief Transform the CompactFSMWithStartEnd to a FSMWithStartEnd."
  "  std::string ToString() const;

  void Share(const CompactFSM& fsm) { fsm_ = fsm; }

  /*!
   * \\brief Transform the CompactFSMWithStartEnd to a FSMWithStartEnd.")
tandem_replace(cpp/fsm.h
  "  const CompactFSMWithStartEnd& GetFsm() const { return fsm_; }\n"
  "  const CompactFSMWithStartEnd& GetFsm() const { return fsm_; }\n  void Share(const CompactFSM& fsm) { fsm_.Share(fsm); }\n")
tandem_replace(cpp/grammar.cc
  "    const CompactFSM& fsm = per_rule_fsms[rule_id]->GetFsm().GetFsm();
    if (!fsm_rules_ok(fsm)) {
      return \"The FSM of rule \" + std::to_string(rule_id) + \" refers to a rule out of range\";
    }
    const int64_t complete_aux_size =
        complete_fsm.IsNull() ? 0 : complete_fsm.GetEdgeAuxData().size();
    for (int state = 0; state < fsm.NumStates(); ++state) {
      for (const auto& edge : fsm.GetEdges(state)) {
        if (edge.IsRepeatRef() && (static_cast<int64_t>(edge.max) + 3 > complete_aux_size ||
                                   !rule_ok(complete_fsm.GetEdgeAuxData()[edge.max]))) {
          return \"The FSM of rule \" + std::to_string(rule_id) +
                 \" has a repeat edge that is out of range of complete_fsm\";
        }
      }
    }
"
  "    // What has just been read is no constant yet.
    auto& shared = const_cast<Grammar::Impl*>(this)->per_rule_fsms[rule_id];
    const auto in_range = [&](int32_t state) { return state >= 0 && state < complete_fsm.NumStates(); };
    if (complete_fsm.IsNull() || !in_range(shared->GetFsm().GetStart()) ||
        !std::all_of(shared->GetFsm().GetEnds().begin(), shared->GetFsm().GetEnds().end(), in_range)) {
      return \"The start or an end of rule \" + std::to_string(rule_id) + \" is out of range\";
    }
    shared->Share(complete_fsm);
")
