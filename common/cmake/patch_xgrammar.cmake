# cmake -DSOURCE=DIR -DSTATE_KEY=FILE -DBOUNDS=FILE -P patch_xgrammar.cmake: makes the matcher of XGrammar's sources in
# DIR tell the state that it is in by the function in the first file, in place of a text for debugging that nothing of
# ours reads, and count its steps and forget what it needs no more by the second.

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

configure_file(${STATE_KEY} ${SOURCE}/cpp/tandem_state_key.inc COPYONLY)
configure_file(${BOUNDS} ${SOURCE}/cpp/tandem_bounds.inc COPYONLY)

set(matcher cpp/grammar_matcher.cc)
set(parser cpp/earley_parser.cc)
tandem_replace(${matcher}
  "  std::string _DebugPrintInternalState() const { return PrintStates(); }\n"
  "  std::string _DebugPrintInternalState() const { return StateKey(); }\n#include \"tandem_state_key.inc\"\n")

# What the matcher offers.
tandem_replace(include/xgrammar/matcher.h "#include <cstdint>\n" "#include <cstdint>\n#include <functional>\n#include <optional>\n")
tandem_replace(include/xgrammar/matcher.h
  "  XGRAMMAR_DEFINE_PIMPL_METHODS(GrammarMatcher);\n"
  "  bool WithinSteps(int64_t most_steps, const std::function<void()>& call);
  static std::optional<int64_t> CompileWithinSteps(int64_t most_steps, const std::function<void()>& call);
  int64_t StepsTaken() const;
  std::size_t HistoryBytes() const;
  void Forget();

  XGRAMMAR_DEFINE_PIMPL_METHODS(GrammarMatcher);\n")
tandem_replace(${matcher}
  "std::string GrammarMatcher::FindJumpForwardString() {"
  "bool GrammarMatcher::WithinSteps(int64_t most_steps, const std::function<void()>& call) {
  return pimpl_->WithinSteps(most_steps, call);
}
std::optional<int64_t> GrammarMatcher::CompileWithinSteps(int64_t most_steps, const std::function<void()>& call) {
  return Impl::CompileWithinSteps(most_steps, call);
}
int64_t GrammarMatcher::StepsTaken() const { return pimpl_->StepsTaken(); }
std::size_t GrammarMatcher::HistoryBytes() const { return pimpl_->HistoryBytes(); }
void GrammarMatcher::Forget() { pimpl_->Forget(); }
std::string GrammarMatcher::FindJumpForwardString() {")
tandem_replace(cpp/earley_parser.h "class EarleyParser {\n" "class EarleyParser {\n#include \"tandem_bounds.inc\"\n")

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

# What the compiler does for one state of a rule, and for each token there.
set(compiler cpp/grammar_compiler.cc)
tandem_count(${compiler}
  "AdaptiveTokenMask GrammarMatcherForTokenMaskCache::GetAdaptiveTokenMask(bool is_root_rule) {\n"
  "64 + tokenizer_info_.GetVocabSize() / 256")
tandem_count(${compiler} "      const auto& token = sorted_decoded_vocab[i].second;\n" "1")
