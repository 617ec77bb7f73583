#include "transport/rpc/printable_message.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"

namespace strata {
namespace {

TEST(PrintableMessage, ItsStringsBecomePrintableAndItsBytesStay) {
  wire::ListModelsResponse message;
  message.set_coordinator("0123");
  wire::ModelStatus* const model = message.add_models();
  model->set_name("Mod\xe8le\n\x1b[2J");
  model->set_architecture("llama");
  model->mutable_source()->set_path("/caf\xe9/m.gguf");
  model->set_chat_template("{% if x %}\n\xff");
  model->mutable_status()->set_message("\u202e");
  model->add_stages()->set_node_name("attic\r");
  MakePrintable(&message);
  EXPECT_EQ(message.coordinator(), "0123");
  EXPECT_EQ(model->name(), "Mod\ufffdle\\n\\u001b[2J");
  EXPECT_EQ(model->architecture(), "llama");
  EXPECT_EQ(model->source().path(), "/caf\xe9/m.gguf");
  EXPECT_EQ(model->chat_template(), "{% if x %}\n\xff");
  EXPECT_EQ(model->status().message(), "\\u202e");
  EXPECT_EQ(model->stages(0).node_name(), "attic\\r");
}

TEST(PrintableMessage, CanBeReadAtTheOtherEnd) {
  wire::ListModelsResponse message, read;
  message.add_models()->set_name("\xff");
  message.mutable_models(0)->mutable_source()->set_path("\xff");
  message.mutable_models(0)->set_chat_template("two\nlines\xff");
  MakePrintable(&message);
  ASSERT_TRUE(read.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(read.models(0).name(), "\ufffd");
  EXPECT_EQ(read.models(0).source().path(), "\xff");
  EXPECT_EQ(read.models(0).chat_template(), "two\nlines\xff");
}

TEST(PrintableMessage, RepeatedStringsAndLongOnesToo) {
  wire::NodeRecord record;
  record.add_addresses("10.0.0.1:7400");
  record.add_addresses("a\x07");
  record.set_name(std::string(100'000, 'x'));
  MakePrintable(&record);
  EXPECT_THAT(record.addresses(), ::testing::ElementsAre("10.0.0.1:7400", "a\\u0007"));
  EXPECT_LE(record.name().size(), 65536u);
}

}  // namespace
}  // namespace strata
