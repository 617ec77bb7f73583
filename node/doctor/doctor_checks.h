// What is wrong, and what to do about it: `strata doctor`'s conclusions from what it has gathered.
// Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "node/doctor/doctor_facts.h"

namespace strata {

struct Check {
  enum class State {
    kOk,
    kNote,  // good to know: not looked at, or in nobody's way
    kWrong,
  };
  std::string id;      // what was checked, for scripts: "clock"
  std::string target;  // where: a node, an interface of it, "attic -> kitchen"
  State state = State::kOk;
  std::string text;
  std::string advice;  // what to do: a sentence, and maybe commands, a line each; may be empty
};

// All checks, in the order in which a person should read them.
std::vector<Check> Diagnose(const DoctorFacts& facts);

// Parts of it.
void CheckThisMachine(const DoctorFacts& facts, std::vector<Check>* checks);
// Of a machine's interfaces and memory; `name` is what people call it.
void CheckMachine(const std::string& name, const wire::MachineFacts& machine,
                  std::vector<Check>* checks);
void CheckCluster(const DoctorFacts& facts, std::vector<Check>* checks);
void CheckNodes(const DoctorFacts& facts, std::vector<Check>* checks);
void CheckWays(const DoctorFacts& facts, std::vector<Check>* checks);
void CheckHost(const DoctorFacts& facts, std::vector<Check>* checks);

}  // namespace strata
