#include "story_plots.h"

namespace titan {
namespace {

// Slots (stories.cpp sets them): {hero} {he} {him} {his} {himself} {kind} {trait}; {friend} {fhe} {fhim} {fhis} {fkind}
// {ftrait}; {elder}; {thing} (noun) {treasure} (adjective and noun); {place} {landmark} {pastime} {place2} {landmark2};
// {animal} {dish} {ingredient} {found}; {all} = {some} + {more}, {left} = {all} - {given}; {weather} {scene} {later}
// {season} {day} {plant} {fear} {hobby} {colour}.

constexpr std::string_view kOpenings[] = {
    "{A:trait} {kind} [named|called] {hero} <live> {home}. More than anything, {he} <love> {hobby}. {His} best friend "
    "<be> "
    "{friend}, {a:ftrait} {fkind}.",
    "This is the story of {hero}, {a:trait} {kind} who <live> {home}. [Every {day}|On most days|In the evenings], "
    "{hero} and "
    "{friend}, {his} best friend, <meet+> at {place}.",
    "{Home} <live> {a:trait} {kind}. {His} name <be> {hero}, and {he} <love> {hobby}. Next door <live> {friend}, "
    "{a:ftrait} {fkind}, and the two <be+> always together.",
    "{Hero} and {friend} <be+> friends. {Hero} <be> {a:trait} {kind}, and {friend} <be> {a:ftrait} {fkind}. [They "
    "<live+> {home}.|"
    "They <know+> each other [very well|since they were small].]",
};

constexpr StoryPlot kPlots[] = {
    // Something is lost and found again.
    {{"{Hero} <have> {a:treasure}. It <be> a present from {elder}, and {he} <take> it everywhere. But on {day} "
      "[morning|evening], "
      "the {thing} <be> gone. {Hero} <look> [under the bed|behind the door|inside every drawer], but it <be> not "
      "there. {He} "
      "<look> [in the kitchen|in the yard|on the stairs] too, but {he} <find> only [an old shoe|a dusty sock|a piece "
      "of string].",
      "\"Where is my {thing}?\" <cry> {hero}. \"I had it [yesterday|last night|before lunch]!\"\n\n{Friend} <hear> "
      "{him} and <come> "
      "[over|running]. \"Do not [worry|cry], {hero},\" <say> {friend}. \"Let us think. Where did you go "
      "yesterday?\"\n\n\"I went to "
      "{place},\" <say> {hero}, \"because I wanted {pastime}.\"",
      "So {hero} and {friend} <go+> to {place}[ together|, hand in hand|, although it was late]. There they <meet+> "
      "{a:animal}. "
      "\"Have you seen {a:treasure}?\" <ask> {friend}. \"[Yes, I have|I think so|Something {colour} was here],\" <say> "
      "the {animal}. "
      "\"[Look|Try looking] [behind|next to|near] {landmark}.\"",
      "They <run+> to {landmark}, and there it <be>: the {treasure}! {Hero} <hold> it [tightly|up high|close] and "
      "<laugh>. \"Thank "
      "you, {friend}! Without you I would [still be sad|never have found it].\" [They <thank+> the {animal} too.|The "
      "{animal} <nod> "
      "and <walk> away.]"},
     "From then on, {hero} always <put> the {thing} [on the shelf|beside the bed|in the same place] at night, because "
     "{he} <know> how "
     "easily things get lost."},
    // Gathering, with counts that add up.
    {{"One {day}, {hero} <want> to make {dish} for {elder}. \"I need {all} {ingredient},\" <say> {hero}, \"but I have "
      "none.\" \"Then "
      "we must [find|gather] them,\" <say> {friend}, and {fhe} <bring> a basket.",
      "First they <look+> {found}. {Hero} <count> [carefully|aloud|slowly]: there <be+> {some} {ingredient}. \"{Some} "
      "is not "
      "enough,\" {he} <say>. \"We still need {more}.\" So they <walk+> on to {place}.",
      "Near {landmark} <stand> {a:animal} with a full sack. \"Please, may we have {more} {ingredient}?\" <ask> {hero} "
      "politely. "
      "\"[You may|Of course|Gladly],\" <say> the {animal}, \"if you [sing me a song|tell me a story|help me carry my "
      "sack].\" {Hero} "
      "[<smile>|<nod>|<laugh>] and <do> what the {animal} <ask>.",
      "Now there <be+> {some} and {more}, and that <make> {all}. {Hero} and {friend} <carry+> the basket home and "
      "<cook+> until the "
      "whole house <smell> [wonderful|sweet and warm]. When {elder} <come> in, the {dish} <stand> on the table. \"All "
      "this for me?\" "
      "<ask> {elder}. \"All {all} {ingredient} are in it,\" <say> {hero} proudly."},
     "They all <eat+> together, and everybody <agree> that work shared is work halved."},
    // A quarrel and its end.
    {{"On {day}, {hero} and {friend} <find+> {a:treasure} near {landmark}. \"It is mine, because I saw it first,\" "
      "<say> {hero}. \"No, "
      "it is mine, because I picked it up,\" <say> {friend}. They [both <pull+>|<pull+> and <pull+>] until the {thing} "
      "<fall> on the "
      "ground[ and <break>|].",
      "Then {hero} <go> home, and {friend} <go> home too. {Hero} <try> {hobby}, but it <be> no fun alone. "
      "[{He} <feel> sorry.|Slowly {his} anger <go> away.] \"A {thing} cannot laugh,\" {he} <think>. \"A {thing} cannot "
      "be my friend.\"",
      "[The next morning|After supper|Before it <be> dark], {hero} <walk> to {place}, and there <sit> {friend}, all "
      "alone. \"I am "
      "sorry, {friend},\" <say> {hero}. \"I was unkind.\" \"I am sorry too,\" <say> {friend}. \"I should not have "
      "pulled so hard.\"",
      "Together they <mend+> the {treasure} with [string|glue|a bit of wire], and it <be> [almost as good as "
      "new|better than before]. "
      "\"You keep it on [Mondays|the even days],\" <say> {friend}, \"and I keep it on [Sundays|the odd days].\" And so "
      "they <do+>."},
     "{Hero} and {friend} <know+> now that a friend is worth more than {a:treasure}."},
    // A journey with an errand.
    {{"One {season} [morning|afternoon], {elder} <give> {hero} {a:treasure}. \"Please take this to {friend} at "
      "{place},\" {elder} <say>. "
      "\"{Friend} needs it before dark. Will you be careful?\" \"I will,\" <promise> {hero}, and {he} <set> off at "
      "once.",
      "The way <be> long. At {place2}, {hero} <stop> to rest near {landmark2}. {A:animal} <come> by and <ask>, \"What "
      "do you carry, "
      "{hero}?\" \"{A:treasure},\" <say> {hero}. \"May I have it?\" <ask> the {animal}. \"No,\" <say> {hero}, \"it is "
      "for {friend}. But you "
      "may walk with me.\"",
      "So the {kind} and the {animal} <walk+> on together. [Soon|After an hour] they <come+> to a [stream|deep "
      "ditch|fallen tree]. "
      "\"I cannot get across,\" <say> {hero}. \"[Climb on my back|Follow me|Hold on to me],\" <say> the {animal}, and "
      "[a moment "
      "later|very slowly] they <reach+> the other side.",
      "It <be> [nearly|almost] dark when they <arrive+> at {place}. {Friend} <stand> beside {landmark} and <wave>. "
      "\"You brought the "
      "{thing}!\" <call> {friend}. \"And you brought a new friend!\" {Hero} <give> {fhim} the {treasure}, and the "
      "three of them "
      "<drink+> hot tea[ with honey|]."},
     "{Hero} <have> kept {his} promise, and {he} <be> as proud as a captain."},
    // A fear is overcome.
    {{"There <be> only one thing that {hero} <do> not like, and that <be> {fear}. Whenever {he} <think> of {fear}, "
      "{his} knees "
      "<begin+> to shake. [{He} <tell> nobody about it.|Only {friend} <know> about it.]",
      "On {day}, {friend} <lose> {fhis} {treasure}. \"It must be at {place},\" <say> {friend}, \"but my foot hurts and "
      "I cannot walk.\" "
      "{Hero} <look> out of the window. To go to {place}, {he} <have> to face {fear}.",
      "\"I am afraid,\" <whisper> {hero}. \"[Everyone is afraid of something|That is all right|I know],\" <say> "
      "{friend}. \"Being "
      "brave does not mean that you are never afraid. [Count to {all}|Sing a song|Take a deep breath], and then take "
      "one step.\"",
      "So {hero} [<count> to {all}|<sing> a song|<take> a deep breath] and <take> one step, and then another. [It <be> "
      "not so "
      "bad.|After a while {he} even <smile>.] Soon {he} <stand> at {place}, and [beside|under|behind] {landmark} <lie> "
      "the {treasure}. "
      "{He} <run> all the way back. \"I did it, {friend}!\" {he} <call>. \"I was afraid, and I did it.\""},
     "After that day, {fear} <seem> much smaller to {hero}."},
    // Growing something takes time.
    {{"One day, {elder} <give> {hero} {some} seeds. \"If you are patient,\" {elder} <say>, \"each of them will become "
      "{a:plant}.\" "
      "{Hero} <dig> {some} holes near {landmark} and <put> one seed into each.",
      "On the first day, nothing <happen>. On the second day, nothing <happen>. \"Perhaps the seeds are asleep,\" "
      "<say> {hero}. {Friend} "
      "<laugh>. \"You have to wait,\" {fhe} <say>. \"Give them water and [sing to them|tell them stories|leave them "
      "alone].\" So "
      "every [morning|evening], {hero} <bring> water in a {colour} bucket.",
      "Then {a:animal} <come> and <eat> one of the little plants. Now there <be+> only {fewer} left. {Hero} <be> "
      "angry, but {friend} "
      "<have> an idea. They <build+> a fence out of [sticks|old boards|stones], and the {animal} <do> not come back.",
      "Many weeks later, {hero} <wake> early and <run> outside. \"{Friend}, come quickly!\" {he} <shout>. There "
      "<stand+> {fewer} tall "
      "plants, and every one of them <be> {a:plant}. \"You see,\" <say> {elder}, \"you were patient after all.\""},
     "{Hero} <give> one to {friend}, and every year they <plant+> new seeds together."},
    // Giving away.
    {{"{Hero} <have> {all} {ingredient} in {a:colour} basket and <want> to sell them at the market. \"With the money I "
      "can buy "
      "{a:thing},\" {he} <tell> {friend}. They <walk+> along the road past {place}.",
      "Beside {landmark} <sit> {a:animal} who <have> not eaten for days. \"Are you hungry?\" <ask> {hero}. \"Very "
      "hungry,\" <say> the "
      "{animal}. {Hero} <think> about the {thing}, but then {he} <take> {given} {ingredient} out of the basket. Now "
      "only {left} <be+> "
      "left. \"These are for you,\" <say> {hero}.",
      "At the market, nobody <want> to buy {left} {ingredient}. \"Too few,\" <say> the people. {Hero} <be> sad. \"Now "
      "I cannot have "
      "{a:thing},\" {he} <say>. \"You did the right thing,\" <say> {friend}[ softly|], \"and I am proud of you.\"",
      "[On the way home|That evening], the {animal} <wait> for them at {landmark}. \"You gave me {given} {ingredient} "
      "when I had "
      "nothing,\" <say> the {animal}. \"I found this long ago, and I have no use for it.\" It <be> {a:treasure}! "
      "{Hero} "
      "[<jump>|<dance>] for joy."},
     "Whoever gives with a glad heart has something left over in the end."},
    // A mystery.
    {{"Every night, {hero} <hear> a strange sound. It [<go> tap, tap, tap|<hum> and <hum>|<whistle> softly], and it "
      "<come> from {place}. "
      "\"What can it be?\" {he} <ask>. \"[A ghost|A giant|A thief],\" <whisper> {friend}, but {fhe} <be> only joking.",
      "On {day}, they <want+> to know. {Hero} <take> {a:treasure}, and {friend} <take> a lamp. [It <be> {weather}, "
      "and|Quietly|Step by "
      "step] they <walk+> to {place}. \"Listen,\" <say> {friend}. The sound <come> from {landmark}.",
      "{Hero} <go> first[, on the tips of {his} toes|, holding {his} breath|]. {He} <look> [behind|under|around] "
      "{landmark}, and what <do> {he} see? "
      "{A:animal}, [making a bed of leaves|building a tiny house|trying to open a box]! \"Good evening,\" <say> the "
      "{animal}. \"Did I "
      "wake you? I can only work at night.\"",
      "{Hero} and {friend} <laugh+>. \"We thought you were [a ghost|a giant|a thief]!\" <say> {hero}. \"Me?\" <ask> "
      "the {animal}. \"I am "
      "much too small for that.\" Then they <help+> with the work, and the {treasure} <be> very useful. Before "
      "midnight, everything "
      "<be> finished."},
     "And whenever {hero} <hear> the sound again, {he} <smile> and <go> back to sleep."},
    // Learning a skill takes practice.
    {{"There <be> to be a festival at {place} on {day}, and {elder} <ask> {hero} to [sing|dance|juggle] for the "
      "guests. \"But I have "
      "never done that,\" <say> {hero}. \"Then you have {some} days to learn it,\" <say> {elder}, and <give> {him} "
      "{a:treasure} for luck.",
      "{Hero} <practise> [behind the house|in the attic|between the trees], where nobody could see. The first time, "
      "{he} <fall> over {his} "
      "own feet. The second time, {a:animal} <laugh> at {him}. \"[It is hopeless|I will never learn it],\" <sigh> "
      "{hero}.",
      "\"How many times did you try?\" <ask> {friend}. \"[Two times|Twice],\" <say> {hero}. \"I needed {all} times "
      "before I could [swim|"
      "whistle|ride a bicycle],\" <say> {friend}. \"Come, I will count for you.\" And {friend} <count>: one, two, "
      "three, and at last "
      "{all}.",
      "On {day}, everybody <come> to {place}. {Hero} <stand> next to {landmark} and <hold> the {treasure} in {his} "
      "[left|right] hand. {His} "
      "heart <beat> fast, but {his} feet <know+> what to do. When it <be> over, the people <clap+> {all} times, and "
      "{elder} <wipe> away a "
      "tear."},
     "What {hero} [<remember>|<like>] best, though, <be> how patiently {friend} had counted."},
    // An exchange that goes on and on.
    {{"{Hero} <find> {a:treasure} beside {landmark}. It <be> [nice|pretty|handy], but {he} <do> not need it. \"Let us "
      "see what we can get "
      "for it,\" <say> {friend}, and off they <go+> to {place2}.",
      "At {place2}, {a:animal} <want> the {thing} at once. \"I will give you {some} {ingredient} for it,\" <say> the "
      "{animal}. \"{Some} "
      "{ingredient} and {more} more,\" <say> {friend}, who <be> {ftrait}. \"[Agreed|Very well],\" <say> the {animal}, "
      "and so the {treasure} "
      "<become> {all} {ingredient}.",
      "Next they <meet+> {elder}. \"What fine {ingredient}!\" <say> {elder}. \"Give me {given}, and you may [sleep in "
      "my barn|sit by my "
      "fire|choose a book].\" {Hero} <count> {given} {ingredient} into the basket of {elder}, and {left} <be+> left.",
      "In the evening, {hero} and {friend} <cook+> {dish} from the last {left} {ingredient}. \"This morning we had "
      "{a:treasure},\" <say> "
      "{friend}, \"and now we have {dish}.\" \"And a good story,\" <say> {hero} with a full mouth."},
     "A thing that one of us does not need can be a treasure to somebody else."},
};

constexpr std::string_view kEndings[] = {
    "[By then|In the evening|At the end of the day], {later}. {Hero} and {friend} <walk+> home [side by "
    "side|slowly|singing], and "
    "[both <be+> happy|neither of them <be> tired]. {lesson}",
    "{lesson}\n\n[By that time|Outside], {later}. \"Good night, {friend},\" <say> {hero}. \"Good night, {hero},\" "
    "<say> {friend}. \"[See "
    "you tomorrow|Sleep well|What a day].\"",
    "{lesson} And that <be> the end of the story of {hero} and {friend}.",
    "When {hero} <tell> {elder} about it that night, {elder} <nod>. \"[Well done|I thought so|You are a good {kind}], "
    "{hero}.\" {lesson}",
};

}  // namespace

std::span<const StoryPlot> story_plots() { return kPlots; }
std::span<const std::string_view> story_openings() { return kOpenings; }
std::span<const std::string_view> story_endings() { return kEndings; }

}  // namespace titan
