// The conclusions of `strata doctor` from the collected facts: faults and advice. Pure functions;
// any thread.
#pragma once

#include <string>
#include <vector>

#include "node/doctor/doctor_facts.h"

namespace strata {

struct Check {
  enum class State {
    kOk,
    kNote,  // good to know: not checked, or harmless
    kWrong,
  };
  std::string id;      // the kind of check, for scripts: "clock"
  std::string target;  // a node, an interface of it, "attic -> kitchen"
  State state = State::kOk;
  std::string text;
  std::string advice;  // what to do: a sentence, and maybe commands, a line each; may be empty
};

// All checks, in the order in which a person should read them.
std::vector<Check> Diagnose(const DoctorFacts& facts);

// The parts of Diagnose().
void CheckThisMachine(const DoctorFacts& facts, std::vector<Check>* checks);
// Checks a machine's interfaces and memory; `name` is its name for people.
void CheckMachine(const std::string& name, const wire::MachineFacts& machine,
                  std::vector<Check>* checks);
void CheckCluster(const DoctorFacts& facts, std::vector<Check>* checks);
void CheckNodes(const DoctorFacts& facts, std::vector<Check>* checks);
void CheckLinks(const DoctorFacts& facts, std::vector<Check>* checks);
void CheckHost(const DoctorFacts& facts, std::vector<Check>* checks);

}  // namespace strata
