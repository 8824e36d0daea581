#include "titan/checkpoint/pickle.h"

#include <gtest/gtest.h>

#include <tuple>

namespace titan {
namespace {

using Kind = PickleValue::Kind;

std::string refusal(const std::string& bytes) {
  try {
    read_pickle(bytes);
  } catch (const PickleError& error) {
    return error.what();
  }
  return "accepted";
}

bool same(const PickleValue& a, const PickleValue& b) {
  if (a.kind != b.kind || a.integer != b.integer || a.real != b.real || a.text != b.text) return false;
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!same(*a.items[i], *b.items[i])) return false;
  }
  return true;
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

TEST(Pickle, PlainValuesComeBackAsTheyWereWritten) {
  const PickleRef value = pickle::dictionary(
      {{"none", pickle::none()},
       {"flags", pickle::tuple({pickle::boolean(true), pickle::boolean(false)})},
       {"numbers", pickle::list({pickle::integer(0), pickle::integer(-1), pickle::integer(2147483647),
                                 pickle::integer(2147483648), pickle::integer(INT64_MIN), pickle::integer(INT64_MAX)})},
       {"real", pickle::real(3e-4)},
       {"text", pickle::text("naïve")},
       {"bytes", pickle::bytes(std::string("\0\xff\n", 3))},
       {"empty", pickle::tuple({})}});
  EXPECT_TRUE(same(*read_pickle(write_pickle(value)), *value));
}

TEST(Pickle, WhatPythonWritesIsReadInEveryProtocolFromTwoOn) {
  // pickle.dumps({"a": [1, 300, 70000, -2], "b": (0.5, True, None), "c": b"\x00\xff"}, protocol) for 2, 3, 4, 5
  const char* const protocols[] = {
      "80027d71002858010000006171015d7102284b014d2c014a701101004afeffffff655801000000627103473f"
      "e0000000000000884e8771045801000000637105635f636f646563730a656e636f64650a7106580300000000"
      "c3bf710758060000006c6174696e31710886710952710a752e",
      "80037d71002858010000006171015d7102284b014d2c014a701101004afeffffff655801000000627103473f"
      "e0000000000000884e8771045801000000637105430200ff7106752e",
      "80049536000000000000007d94288c0161945d94284b014d2c014a701101004afeffffff658c016294473fe0"
      "000000000000884e87948c016394430200ff94752e",
      "80059536000000000000007d94288c0161945d94284b014d2c014a701101004afeffffff658c016294473fe0"
      "000000000000884e87948c016394430200ff94752e"};
  for (const char* hex : protocols) {
    const std::string bytes = from_hex(hex);
    const PickleRef read = read_pickle(bytes);
    ASSERT_TRUE(read->is(Kind::dictionary));
    ASSERT_EQ(read->find("a")->items.size(), 4u);
    EXPECT_EQ(read->find("a")->items[2]->integer, 70000);
    EXPECT_EQ(read->find("a")->items[3]->integer, -2);
    EXPECT_EQ(read->find("b")->items[0]->real, 0.5);
    EXPECT_EQ(read->find("c")->text, std::string("\0\xff", 2));
    EXPECT_EQ(read->find("d"), nullptr);
  }
}

TEST(Pickle, ObjectsOfKnownTypesAreNamesWithArgumentsAndState) {
  const PickleRef read = read_pickle(write_pickle(pickle::instance(
      "torch.distributed.checkpoint.metadata MetadataIndex", pickle::dictionary({{"fqn", pickle::text("w")}}))));
  ASSERT_TRUE(read->is_object("torch.distributed.checkpoint.metadata MetadataIndex"));
  EXPECT_EQ(read->items.at(1)->find("fqn")->text, "w");
}

TEST(Pickle, AnythingThatAsksForAnotherNameIsRefusedByThatName) {
  // cos\nsystem\n(S'true'\ntR.
  EXPECT_EQ(refusal("\x80\x02"
                    "cos\nsystem\nX\x04\x00\x00\x00"),
            "it asks for os.system, which no checkpoint needs; nothing was executed");
  EXPECT_EQ(refusal(std::string("\x80\x02"
                                "co\0s\nsystem\n.",
                                15)),
            "it asks for o\\x00s.system, which no checkpoint needs; nothing was executed");
  for (const char* name : {"builtins eval", "posix system", "torch load", "torch.hub load", "torch._utils _rebuild",
                           "pathlib Path", "functools partial", "torch  Size", "collections defaultdict"}) {
    const std::string bytes = write_pickle(pickle::call(name, {}));
    EXPECT_NE(refusal(bytes).find("which no checkpoint needs"), std::string::npos) << name;
  }
}

TEST(Pickle, AMemberOfTheKnownEnumerationMayBeAskedForByNameAndNothingElseMay) {
  const std::string enumeration = "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING";
  const PickleRef member = pickle::text("TORCH_CONTIGUOUS_FORMAT");
  const auto asked = [](std::vector<PickleRef> arguments) {
    return write_pickle(pickle::call("builtins getattr", std::move(arguments)));
  };
  const PickleRef value = read_pickle(asked({pickle::global(enumeration), member}));
  ASSERT_TRUE(value->is_object(enumeration));
  EXPECT_EQ(value->items.at(0)->items.at(0)->text, "TORCH_CONTIGUOUS_FORMAT");
  const std::string refused = "it calls builtins.getattr, which no checkpoint needs; nothing was executed";
  EXPECT_EQ(refusal(asked({pickle::global("torch Size"), pickle::text("__class__")})), refused);
  EXPECT_EQ(refusal(asked({pickle::global(enumeration), pickle::integer(0)})), refused);
  EXPECT_EQ(refusal(asked({pickle::global(enumeration)})), refused);
}

TEST(Pickle, WhatDoesNotBeginWithAProtocolIsRefused) {
  const std::string says = "it does not begin as a pickle of protocol 2 to 5";
  for (const std::string& other : {std::string(), std::string("\x80"), std::string(1 << 20, '\0'), std::string("N."),
                                   std::string("\x80\x01N."), std::string("\x80\x06N."), std::string("\x80\xffN.")}) {
    EXPECT_EQ(refusal(other), says) << other.size();
  }
  for (const char* ours : {"\x80\x02N.", "\x80\x03N.", "\x80\x04N.", "\x80\x05N."}) {
    EXPECT_EQ(refusal(ours), "accepted");
  }
}

TEST(Pickle, NamesBuiltOnTheStackAreCheckedToo) {
  EXPECT_NE(refusal(std::string("\x80\x04\x8c\x02os\x8c\x06system\x93.", 17)).find("os.system"), std::string::npos);
}

TEST(Pickle, InstructionsThatRunCodeOrReachOutAreUnknown) {
  // INST, OBJ, NEWOBJ_EX, PERSID, EXT1, the old text numbers
  for (const char code : {'i', 'o', '\x92', 'P', '\x82', 'I', 'L', 'F', 'S', 'd', 'l', '2', '0', '1'}) {
    const std::string bytes = std::string("\x80\x02N") + code + "x\ny\n.";
    EXPECT_NE(refusal(bytes).find("instruction"), std::string::npos) << code;
  }
}

TEST(Pickle, EveryTruncationOfAPickleIsRefused) {
  const std::string whole = write_pickle(pickle::dictionary(
      {{"a", pickle::list({pickle::integer(1), pickle::integer(1LL << 40)})}, {"b", pickle::bytes("xyz")}}));
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal(whole.substr(0, size)), "accepted") << size;
  EXPECT_EQ(refusal(whole), "accepted");
}

TEST(Pickle, AnyByteMayBeChangedAndTheReaderEitherReadsOrRefuses) {
  const std::string whole = write_pickle(pickle::instance(
      "torch.distributed.checkpoint.metadata Metadata",
      pickle::dictionary({{"a", pickle::list({pickle::integer(1), pickle::tuple({pickle::real(2)})})}})));
  int refused = 0;
  for (size_t place = 0; place < whole.size(); ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ (1 << bit));
      refused += refusal(changed) != "accepted";
    }
  }
  EXPECT_GT(refused, static_cast<int>(whole.size()));
}

TEST(Pickle, AValueThatHoldsItselfIsRefused) {
  const std::string at_once = "one of its values holds itself";
  const std::string by_another = "it changes a value that another one already holds: one may hold itself";
  const std::string kept = "q\x01", me = "h\x01";
  const std::string object = "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81" + kept;
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"a = []; a.append(a)", "]" + kept + me + "a", at_once},
      {"a = []; a.extend([1, a])", "]" + kept + "(K\x01" + me + "e", at_once},
      {"a = {}; a[1] = a", "}" + kept + "K\x01" + me + "s", at_once},
      {"d = {}; a = []; a.append(a); d[1] = a", "}K\x01]" + kept + me + "as", at_once},
      {"the state of an object is the object", object + me + "b", at_once},
      {"a = []; b = [a]; a.append(b)", "]" + kept + "]" + me + "aa", by_another},
      {"a = []; a.append((a,))", "]" + kept + me + "\x85" + "a", by_another},
      {"a = {}; b = {1: a}; a[1] = b", "}" + kept + "K\x01}K\x01" + me + "ss", by_another},
      {"the state of an object holds the object", object + "}K\x01" + me + "sb", by_another}};
  for (const auto& [what, body, says] : cases) EXPECT_EQ(refusal("\x80\x02" + body + "."), says) << what;
  EXPECT_EQ(refusal("\x80\x02]" + kept + me + "\x86."), "accepted") << "two places of one value are no cycle";
}

TEST(Pickle, DeepNestingIsRefusedBeforeItExhaustsTheStack) {
  std::string deep = "\x80\x02N";
  for (int i = 0; i < 1'000'000; ++i) deep += '\x85';
  EXPECT_EQ(refusal(deep + "."), "its values are nested too deep");
  std::string shallow = "\x80\x02N";
  for (int i = 0; i < 50; ++i) shallow += '\x85';
  EXPECT_EQ(refusal(shallow + "."), "accepted");
  const auto lists = [](size_t levels) { return "\x80\x02" + std::string(levels + 1, ']') + std::string(levels, 'a'); };
  EXPECT_EQ(refusal(lists(1'000'000) + "."), "its values are nested too deep");
  EXPECT_EQ(refusal(lists(50) + "."), "accepted");
}

TEST(Pickle, AValueInMorePlacesThanAnyoneCanVisitIsRefused) {
  // x = []; then x = (x, x), that many times
  const auto doubled = [](int times) {
    std::string bytes = "\x80\x02]";
    for (int i = 0; i < times; ++i) {
      const auto place = static_cast<char>(i);
      bytes += std::string{'q', place, 'h', place, '\x86'};
    }
    return bytes + ".";
  };
  EXPECT_EQ(refusal(doubled(60)), "its values hold one another in too many places");
  EXPECT_EQ(refusal(doubled(90)), "its values hold one another in too many places") << "nor does the count overflow";
  EXPECT_EQ(refusal(doubled(15)), "accepted");
  // A text counts by its length: who writes the value again writes it in each place.
  const auto repeated = [](size_t times) {
    std::string bytes = "\x80\x02(X" + std::string("\x00\x00\x10\x00", 4) + std::string(1 << 20, 'a') + "q" + '\0';
    for (size_t i = 0; i < times; ++i) bytes += std::string{'h', '\0'};
    return bytes + "t.";
  };
  EXPECT_EQ(refusal(repeated(1000)), "its values hold one another in too many places");
  EXPECT_EQ(refusal(repeated(20)), "accepted");
  // Names and small tuples in thousands of places are what Python writes.
  std::string shared = "\x80\x02(X" + std::string("\x28\x00\x00\x00", 4) + std::string(40, 'n') + "q" + '\0';
  for (int i = 0; i < 100'000; ++i) shared += std::string{'h', '\0'};
  EXPECT_EQ(refusal(shared + "t."), "accepted");
}

TEST(Pickle, BytesSpelledFromOneTextManyTimesAreRefusedBeforeTheyFillTheMemory) {
  const std::string text(250, 'a'), encoding = "latin1";
  std::string bytes = "\x80\x04\x8c\xfa" + text + "q" + '\0' + "c_codecs\nencode\nq\x01\x8c\x06" + encoding + "q\x02](";
  const std::string call = std::string{'h', '\1', 'h', '\0', 'h', '\2', '\x86', 'R'};
  const auto list = [&](int calls) {
    std::string pickle = bytes;
    for (int i = 0; i < calls; ++i) pickle += call;
    return pickle + "e\x86.";
  };
  EXPECT_EQ(refusal(list(2)), "it spells more bytes than it has");
  EXPECT_EQ(refusal(list(100'000)), "it spells more bytes than it has");
  // One call, and bytes that are recalled instead of spelled again, as Python does.
  std::string once = "\x80\x02]c_codecs\nencode\nX" + std::string("\xfa\x00\x00\x00", 4) + text + "X" +
                     std::string("\x06\x00\x00\x00", 4) + encoding + "\x86Rq\x01(";
  for (int i = 0; i < 1000; ++i) once += "h\x01";
  EXPECT_EQ(refusal(once + "t\x87."), "accepted");
}

TEST(Pickle, LengthsBeyondTheFileAreRefusedWithoutAskingForTheMemory) {
  EXPECT_EQ(refusal("\x80\x02X\xff\xff\xff\xff."), "it ends too early");
  EXPECT_EQ(refusal("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff."), "it ends too early");
}

TEST(Pickle, AnIntegerOfMoreThan64BitsIsRefused) {
  EXPECT_EQ(refusal(std::string("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", 13)),
            "it holds an integer of more than 64 bits");
}

TEST(PickleStream, SharedTextsAreWrittenOnceAndBatchesAreOneValue) {
  std::string bytes;
  PickleStream stream([&](std::string_view part) { bytes += part; });
  stream.open_dictionary();
  for (int64_t i = 0; i < 3000; ++i) {
    stream.next_pair();
    stream.shared_text("key " + std::to_string(i % 400));
    stream.open_list();
    for (int64_t item = 0; item < i % 3; ++item) {
      stream.next_item();
      stream.shared_text("a text");
    }
    stream.close_list();
  }
  stream.close_dictionary();
  stream.finish();
  const PickleRef value = read_pickle(bytes);
  ASSERT_EQ(value->items.size(), 6000u);
  for (size_t i = 0; i < 3000; ++i) {
    ASSERT_EQ(value->items[2 * i]->text, "key " + std::to_string(i % 400));
    ASSERT_EQ(value->items[2 * i + 1]->items.size(), i % 3);
    for (const PickleRef& item : value->items[2 * i + 1]->items) ASSERT_EQ(item->text, "a text");
  }
  EXPECT_EQ(bytes.find("a text"), bytes.rfind("a text"));
}

/// Takes even integers out of lists, and pairs with integer keys out of dictionaries.
class EvenTaker : public PickleTaker {
 public:
  bool take_item(PickleValue& list, const PickleValue& item) override {
    if (!item.is(Kind::integer) || item.integer % 2 != 0) return false;
    ++list.integer;
    return true;
  }
  bool take_pair(PickleValue&, const PickleValue& key, const PickleValue&) override { return key.is(Kind::integer); }
};

TEST(PickleTaker, WhatIsTakenIsNotHeldAndTheRestIs) {
  PickleValue pairs = *pickle::dictionary(
      {{"list", pickle::list({pickle::integer(1), pickle::integer(2), pickle::integer(4), pickle::text("x")})}});
  pairs.items.push_back(pickle::integer(3));
  pairs.items.push_back(pickle::none());
  EvenTaker taker;
  const PickleRef read = read_pickle(write_pickle(std::make_shared<const PickleValue>(pairs)), &taker);
  ASSERT_EQ(read->items.size(), 2u);
  const PickleValue* list = read->find("list");
  ASSERT_TRUE(list);
  EXPECT_EQ(list->integer, 2);
  ASSERT_EQ(list->items.size(), 2u);
  EXPECT_EQ(list->items[1]->text, "x");
}

}  // namespace
}  // namespace titan
