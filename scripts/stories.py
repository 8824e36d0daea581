#!/usr/bin/env python3
"""Writes the corpora of the quick start: simple English stories and conversations about their beginnings, the same ones
every time.

    scripts/stories.py                      configs/corpora: stories, chat, and *_validation of both, all .jsonl
    scripts/stories.py --count 9000 FOLDER  the same files elsewhere, with more stories for training after those

A conversation is a beginning with one to three questions about it, each with its answer. A story has about 100 to 350 words. Names, objects, places, counts, weather and tense agree from its first sentence to
its last, which a small model learns after it has learned the words. The texts are templates:

    {hero} {Hero}   the value of a slot; a capital letter asks for one
    {a:thing}       the value with "a" or "an" before it ({A:thing} at the start of a sentence)
    [one|two|]      one of these at random; may be nested; an empty one leaves it out
    <walk> <walk+>  the verb in the story's tense, third person singular or plural
"""

import argparse
import json
from pathlib import Path
import re

TRAINING, VALIDATION = 1200, 115  # stories in the two files: 1.5 MB and 150 kB
FIRST_VALIDATION = 1 << 40  # number of the first validation story; training never comes this far
CONVERSATIONS, CONVERSATIONS_VALIDATION = 600, 60  # in the two files of conversations: 0.3 MB
FIRST_CONVERSATION = 1 << 41  # their numbers, the validation's first
KEY = 1811190258649284091  # of the random numbers

# A blank line separates openings, plots and endings; a dash begins a paragraph.
OPENINGS = """
- {A:trait} {kind} [named|called] {hero} <live> {home}. More than anything, {he} <love> {hobby}. {His} best friend
  <be> {friend}, {a:ftrait} {fkind}.

- This is the story of {hero}, {a:trait} {kind} who <live> {home}. [Every {day}|On most days|In the evenings], {hero}
  and {friend}, {his} best friend, <meet+> at {place}.

- {Home} <live> {a:trait} {kind}. {His} name <be> {hero}, and {he} <love> {hobby}. Next door <live> {friend},
  {a:ftrait} {fkind}, and the two <be+> always together.

- {Hero} and {friend} <be+> friends. {Hero} <be> {a:trait} {kind}, and {friend} <be> {a:ftrait} {fkind}. [They <live+>
  {home}.|They <know+> each other [very well|since they were small].]
"""

# Of each plot, the last paragraph is the {lesson}, which an ending quotes.
PLOTS = """
- {Hero} <have> {a:treasure}. It <be> a present from {elder}, and {he} <take> it everywhere. But on {day}
  [morning|evening], the {thing} <be> gone. {Hero} <look> [under the bed|behind the door|inside every drawer], but it
  <be> not there. {He} <look> [in the kitchen|in the yard|on the stairs] too, but {he} <find> only [an old shoe|a
  dusty sock|a piece of string].
- "Where is my {thing}?" <cry> {hero}. "I had it [yesterday|last night|before lunch]!"
- {Friend} <hear> {him} and <come> [over|running]. "Do not [worry|cry], {hero}," <say> {friend}. "Let us think. Where
  did you go yesterday?"
- "I went to {place}," <say> {hero}, "because I wanted {pastime}."
- So {hero} and {friend} <go+> to {place}[ together|, hand in hand|, although it was late]. There they <meet+>
  {a:animal}. "Have you seen {a:treasure}?" <ask> {friend}. "[Yes, I have|I think so|Something {colour} was here],"
  <say> the {animal}. "[Look|Try looking] [behind|next to|near] {landmark}."
- They <run+> to {landmark}, and there it <be>: the {treasure}! {Hero} <hold> it [tightly|up high|close] and <laugh>.
  "Thank you, {friend}! Without you I would [still be sad|never have found it]." [They <thank+> the {animal} too.|The
  {animal} <nod> and <walk> away.]
- From then on, {hero} always <put> the {thing} [on the shelf|beside the bed|in the same place] at night, because {he}
  <know> how easily things get lost.

- One {day}, {hero} <want> to make {dish} for {elder}. "I need {all} {ingredient}," <say> {hero}, "but I have none."
  "Then we must [find|gather] them," <say> {friend}, and {fhe} <bring> a basket.
- First they <look+> {found}. {Hero} <count> [carefully|aloud|slowly]: there <be+> {some} {ingredient}. "{Some} is not
  enough," {he} <say>. "We still need {more}." So they <walk+> on to {place}.
- Near {landmark} <stand> {a:animal} with a full sack. "Please, may we have {more} {ingredient}?" <ask> {hero}
  politely. "[You may|Of course|Gladly]," <say> the {animal}, "if you [sing me a song|tell me a story|help me carry my
  sack]." {Hero} [<smile>|<nod>|<laugh>] and <do> what the {animal} <ask>.
- Now there <be+> {some} and {more}, and that <make> {all}. {Hero} and {friend} <carry+> the basket home and <cook+>
  until the whole house <smell> [wonderful|sweet and warm]. When {elder} <come> in, the {dish} <stand> on the table.
  "All this for me?" <ask> {elder}. "All {all} {ingredient} are in it," <say> {hero} proudly.
- They all <eat+> together, and everybody <agree> that work shared is work halved.

- On {day}, {hero} and {friend} <find+> {a:treasure} near {landmark}. "It is mine, because I saw it first," <say>
  {hero}. "No, it is mine, because I picked it up," <say> {friend}. They [both <pull+>|<pull+> and <pull+>] until the
  {thing} <fall> on the ground[ and <break>|].
- Then {hero} <go> home, and {friend} <go> home too. {Hero} <try> {hobby}, but it <be> no fun alone. [{He} <feel>
  sorry.|Slowly {his} anger <go> away.] "A {thing} cannot laugh," {he} <think>. "A {thing} cannot be my friend."
- [The next morning|After supper|Before it <be> dark], {hero} <walk> to {place}, and there <sit> {friend}, all alone.
  "I am sorry, {friend}," <say> {hero}. "I was unkind." "I am sorry too," <say> {friend}. "I should not have pulled so
  hard."
- Together they <mend+> the {treasure} with [string|glue|a bit of wire], and it <be> [almost as good as new|better
  than before]. "You keep it on [Mondays|the even days]," <say> {friend}, "and I keep it on [Sundays|the odd days]."
  And so they <do+>.
- {Hero} and {friend} <know+> now that a friend is worth more than {a:treasure}.

- One {season} [morning|afternoon], {elder} <give> {hero} {a:treasure}. "Please take this to {friend} at {place},"
  {elder} <say>. "{Friend} needs it before dark. Will you be careful?" "I will," <promise> {hero}, and {he} <set> off
  at once.
- The way <be> long. At {place2}, {hero} <stop> to rest near {landmark2}. {A:animal} <come> by and <ask>, "What do you
  carry, {hero}?" "{A:treasure}," <say> {hero}. "May I have it?" <ask> the {animal}. "No," <say> {hero}, "it is for
  {friend}. But you may walk with me."
- So the {kind} and the {animal} <walk+> on together. [Soon|After an hour] they <come+> to a [stream|deep ditch|fallen
  tree]. "I cannot get across," <say> {hero}. "[Climb on my back|Follow me|Hold on to me]," <say> the {animal}, and [a
  moment later|very slowly] they <reach+> the other side.
- It <be> [nearly|almost] dark when they <arrive+> at {place}. {Friend} <stand> beside {landmark} and <wave>. "You
  brought the {thing}!" <call> {friend}. "And you brought a new friend!" {Hero} <give> {fhim} the {treasure}, and the
  three of them <drink+> hot tea[ with honey|].
- {Hero} <have> kept {his} promise, and {he} <be> as proud as a captain.

- There <be> only one thing that {hero} <do> not like, and that <be> {fear}. Whenever {he} <think> of {fear}, {his}
  knees <begin+> to shake. [{He} <tell> nobody about it.|Only {friend} <know> about it.]
- On {day}, {friend} <lose> {fhis} {treasure}. "It must be at {place}," <say> {friend}, "but my foot hurts and I
  cannot walk." {Hero} <look> out of the window. To go to {place}, {he} <have> to face {fear}.
- "I am afraid," <whisper> {hero}. "[Everyone is afraid of something|That is all right|I know]," <say> {friend}.
  "Being brave does not mean that you are never afraid. [Count to {all}|Sing a song|Take a deep breath], and then take
  one step."
- So {hero} [<count> to {all}|<sing> a song|<take> a deep breath] and <take> one step, and then another. [It <be> not
  so bad.|After a while {he} even <smile>.] Soon {he} <stand> at {place}, and [beside|under|behind] {landmark} <lie>
  the {treasure}. {He} <run> all the way back. "I did it, {friend}!" {he} <call>. "I was afraid, and I did it."
- After that day, {fear} <seem> much smaller to {hero}.

- One day, {elder} <give> {hero} {some} seeds. "If you are patient," {elder} <say>, "each of them will become
  {a:plant}." {Hero} <dig> {some} holes near {landmark} and <put> one seed into each.
- On the first day, nothing <happen>. On the second day, nothing <happen>. "Perhaps the seeds are asleep," <say>
  {hero}. {Friend} <laugh>. "You have to wait," {fhe} <say>. "Give them water and [sing to them|tell them
  stories|leave them alone]." So every [morning|evening], {hero} <bring> water in a {colour} bucket.
- Then {a:animal} <come> and <eat> one of the little plants. Now there <be+> only {fewer} left. {Hero} <be> angry, but
  {friend} <have> an idea. They <build+> a fence out of [sticks|old boards|stones], and the {animal} <do> not come
  back.
- Many weeks later, {hero} <wake> early and <run> outside. "{Friend}, come quickly!" {he} <shout>. There <stand+>
  {fewer} tall plants, and every one of them <be> {a:plant}. "You see," <say> {elder}, "you were patient after all."
- {Hero} <give> one to {friend}, and every year they <plant+> new seeds together.

- {Hero} <have> {all} {ingredient} in {a:colour} basket and <want> to sell them at the market. "With the money I can
  buy {a:thing}," {he} <tell> {friend}. They <walk+> along the road past {place}.
- Beside {landmark} <sit> {a:animal} who <have> not eaten for days. "Are you hungry?" <ask> {hero}. "Very hungry,"
  <say> the {animal}. {Hero} <think> about the {thing}, but then {he} <take> {given} {ingredient} out of the basket.
  Now only {left} <be+> left. "These are for you," <say> {hero}.
- At the market, nobody <want> to buy {left} {ingredient}. "Too few," <say> the people. {Hero} <be> sad. "Now I cannot
  have {a:thing}," {he} <say>. "You did the right thing," <say> {friend}[ softly|], "and I am proud of you."
- [On the way home|That evening], the {animal} <wait> for them at {landmark}. "You gave me {given} {ingredient} when I
  had nothing," <say> the {animal}. "I found this long ago, and I have no use for it." It <be> {a:treasure}! {Hero}
  [<jump>|<dance>] for joy.
- Whoever gives with a glad heart has something left over in the end.

- Every night, {hero} <hear> a strange sound. It [<go> tap, tap, tap|<hum> and <hum>|<whistle> softly], and it <come>
  from {place}. "What can it be?" {he} <ask>. "[A ghost|A giant|A thief]," <whisper> {friend}, but {fhe} <be> only
  joking.
- On {day}, they <want+> to know. {Hero} <take> {a:treasure}, and {friend} <take> a lamp. [It <be> {weather},
  and|Quietly|Step by step] they <walk+> to {place}. "Listen," <say> {friend}. The sound <come> from {landmark}.
- {Hero} <go> first[, on the tips of {his} toes|, holding {his} breath|]. {He} <look> [behind|under|around]
  {landmark}, and what <do> {he} see? {A:animal}, [making a bed of leaves|building a tiny house|trying to open a box]!
  "Good evening," <say> the {animal}. "Did I wake you? I can only work at night."
- {Hero} and {friend} <laugh+>. "We thought you were [a ghost|a giant|a thief]!" <say> {hero}. "Me?" <ask> the
  {animal}. "I am much too small for that." Then they <help+> with the work, and the {treasure} <be> very useful.
  Before midnight, everything <be> finished.
- And whenever {hero} <hear> the sound again, {he} <smile> and <go> back to sleep.

- There <be> to be a festival at {place} on {day}, and {elder} <ask> {hero} to [sing|dance|juggle] for the guests.
  "But I have never done that," <say> {hero}. "Then you have {some} days to learn it," <say> {elder}, and <give> {him}
  {a:treasure} for luck.
- {Hero} <practise> [behind the house|in the attic|between the trees], where nobody could see. The first time, {he}
  <fall> over {his} own feet. The second time, {a:animal} <laugh> at {him}. "[It is hopeless|I will never learn it],"
  <sigh> {hero}.
- "How many times did you try?" <ask> {friend}. "[Two times|Twice]," <say> {hero}. "I needed {all} times before I
  could [swim|whistle|ride a bicycle]," <say> {friend}. "Come, I will count for you." And {friend} <count>: one, two,
  three, and at last {all}.
- On {day}, everybody <come> to {place}. {Hero} <stand> next to {landmark} and <hold> the {treasure} in {his}
  [left|right] hand. {His} heart <beat> fast, but {his} feet <know+> what to do. When it <be> over, the people <clap+>
  {all} times, and {elder} <wipe> away a tear.
- What {hero} [<remember>|<like>] best, though, <be> how patiently {friend} had counted.

- {Hero} <find> {a:treasure} beside {landmark}. It <be> [nice|pretty|handy], but {he} <do> not need it. "Let us see
  what we can get for it," <say> {friend}, and off they <go+> to {place2}.
- At {place2}, {a:animal} <want> the {thing} at once. "I will give you {some} {ingredient} for it," <say> the
  {animal}. "{Some} {ingredient} and {more} more," <say> {friend}, who <be> {ftrait}. "[Agreed|Very well]," <say> the
  {animal}, and so the {treasure} <become> {all} {ingredient}.
- Next they <meet+> {elder}. "What fine {ingredient}!" <say> {elder}. "Give me {given}, and you may [sleep in my
  barn|sit by my fire|choose a book]." {Hero} <count> {given} {ingredient} into the basket of {elder}, and {left}
  <be+> left.
- In the evening, {hero} and {friend} <cook+> {dish} from the last {left} {ingredient}. "This morning we had
  {a:treasure}," <say> {friend}, "and now we have {dish}." "And a good story," <say> {hero} with a full mouth.
- A thing that one of us does not need can be a treasure to somebody else.
"""

ENDINGS = """
- [By then|In the evening|At the end of the day], {later}. {Hero} and {friend} <walk+> home [side by
  side|slowly|singing], and [both <be+> happy|neither of them <be> tired]. {lesson}

- {lesson}
- [By that time|Outside], {later}. "Good night, {friend}," <say> {hero}. "Good night, {hero}," <say> {friend}. "[See
  you tomorrow|Sleep well|What a day]."

- {lesson} And that <be> the end of the story of {hero} and {friend}.

- When {hero} <tell> {elder} about it that night, {elder} <nod>. "[Well done|I thought so|You are a good {kind}],
  {hero}." {lesson}
"""

# A question and its answer, about what (nearly) every opening tells.
QUESTIONS = """
- [Who <be> the best friend of {hero}?|Who <be> {hero}'s best friend?]
- [The best friend of {hero} <be> {friend}.|{Friend} <be> the best friend of {hero}.]

- [Where <do> {hero} live?|Tell me where {hero} <live>.]
- {Hero} <live> {home}.

- [What kind of {kind} <be> {hero}?|Tell me about {hero}.]
- {Hero} <be> {a:trait} {kind}.
"""

# Lists have commas between their entries; tables, semicolons between rows and commas between columns.
WORDS = """
girls: Anna, Mia, Lena, Rosa, Ella, Nora, Ruth, Ida, Clara, Greta, Lucy, Maya, Sofia, Hana, Zoe, Iris, Tilda, Wanda,
  Olive, Petra, Frida, Juno, Amira, Dora, Kiri, Lily, Marta, Nina, Alma, Berta, Celia, Daisy, Edda, Flora, Hilda,
  Jana, Kira, Lotte, Mira, Olga, Pia, Rita, Selma, Thea, Uma, Vera, Yara, Wilma
boys: Tom, Ben, Max, Leo, Sam, Otto, Finn, Jack, Oscar, Hugo, Emil, Paul, Noah, Theo, Omar, Karl, Ravi, Felix, Jonas,
  Milo, Pip, Rufus, Simon, Toby, Ivan, Alfie, Bruno, Kenji, Adam, Boris, Cedric, David, Elias, Fritz, Georg, Henry,
  Isaac, Jasper, Konrad, Linus, Marek, Nils, Oliver, Peter, Quentin, Robin, Stefan, Viktor
animals: fox, rabbit, bear, mouse, owl, cat, dog, duck, frog, goat, otter, hedgehog, squirrel, sheep, crow, badger,
  mole, beaver, goose, pony, turtle, robin, heron, donkey, swan, wolf, lamb, hare, raccoon, sparrow, deer, stork,
  lizard, magpie
traits: brave, curious, shy, clever, cheerful, gentle, stubborn, quiet, kind, busy, dreamy, careful, merry, honest,
  playful, proud, patient, lively, thoughtful, impatient, young, little, friendly, lonely, calm, eager, generous,
  grumpy, hopeful, modest, nosy, polite, restless, sleepy, wise, wild
home: in a small house by the river, at the edge of a dark forest, above the bakery in a busy town, on a farm behind
  the green hills, in a village near the sea, in a crooked cottage at the end of the lane, beside a wide blue lake,
  high up in the mountains, in a red house with a round window, next to the railway station, under the roots of an old
  oak tree, on a little island, in a house full of books, at the top of a windy hill, near the harbour with its many
  ships, in a green and narrow valley, in a tall tower with crooked stairs, behind the school in a yellow tent, on a
  boat that never left the shore, where the road ends and the moor begins, in a warm room over the stables, among the
  vineyards in the south
hobby: to paint pictures of boats, to sing old songs, to count the stars, to collect smooth stones, to climb trees, to
  bake bread, to listen to stories, to draw maps of faraway lands, to build towers of wood, to watch the clouds, to
  play the drum, to swim in cold water, to read by candlelight, to feed the birds, to mend broken things, to walk
  along the shore, to plant seeds, to make up riddles, to ride a bicycle, to dance in the kitchen, to bake little
  cakes, to write long letters, to carve animals out of wood, to chase butterflies, to listen to the rain, to paint
  the fence, to look after the hens, to read the newspaper aloud, to whistle old tunes, to fly paper planes
elder: {his} grandmother, {his} grandfather, {his} aunt, {his} uncle, {his} mother, {his} father, the old baker, the
  teacher, the gardener, the miller, the postman, the shepherd, the old sailor, the doctor
colour: red, blue, green, yellow, white, orange, purple, silver, golden, striped, wooden, tiny, old, shiny, brown,
  pink, grey, black, soft, heavy, round, crooked, painted, rusty, precious, paper, copper, velvet
thing: kite, ball, hat, drum, lantern, scarf, boat, key, cup, whistle, bell, box, button, umbrella, basket, book,
  coat, spoon, flute, ring, puppet, compass, mirror, bucket, clock, feather, marble, blanket, ladder, wagon, candle,
  violin, ribbon, needle, teapot, hammer, mitten, sledge, trumpet, magnet, locket, pillow, broom, saddle, helmet,
  telescope, anchor, map, pencil, jar
plant: sunflower, rose, tulip, pumpkin, bean, apple tree, cherry tree, poppy, melon, lily, pea plant, carrot, daisy,
  strawberry, walnut tree, cabbage, cucumber, violet, turnip, plum tree
fear: the dark, deep water, the big dog next door, thunder, the high tower, the old bridge, the howling wind, the
  empty barn, the cellar, the night train, the steep stairs, the forest at night, the grey goose, the deep well, the
  cold sea
season: spring, summer, autumn, winter
day: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday
numbers: zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen,
  sixteen, seventeen, eighteen, nineteen, twenty, twenty-one, twenty-two, twenty-three, twenty-four
weather, scene, later: sunny, the light <dance> on every roof, the sun <be> low and golden; rainy, the rain <tap> on
  the windows, the rain <have> stopped and everything <smell> fresh; windy, the wind <shake> the tall trees, the wind
  <be> no more than a whisper; foggy, the fog <hide> the far hills, the fog <have> lifted and the hills <be+> clear
  again; warm, the bees <hum+> over the grass, the warm air <smell> of hay; cold, everybody <wear> a thick coat, the
  windows of all the houses <glow+> warmly; cloudy, grey clouds <hang+> over the roofs, a single star <shine> between
  the clouds; stormy, the thunder <roll> over the valley, the storm <have> moved on to the sea; bright, the sky <be>
  as blue as a new plate, the sky <turn> pink and then dark blue; misty, tiny drops <sit+> on every leaf, the mist
  <be> gone and the moon <rise>; frosty, thin ice <cover> the puddles, the ice <have> melted in the afternoon light;
  hot, even the dogs <lie+> in the shade, a cool breeze <come> up from the river; grey, the smoke of the chimneys
  <hang> low, the first lamps <be+> lit along the street; mild, the snails <cross+> the path, the frogs <begin+> their
  evening concert
place, landmark, pastime: the old mill, the big stone wheel, to watch the water; the market, the fruit stand, to buy
  fresh bread; the harbour, the stack of wet ropes, to see the ships; the forest, the hollow tree, to look for
  mushrooms; the school, the long bench, to practise for the play; the lake, the wooden pier, to feed the ducks; the
  bridge, the iron lamp, to throw sticks into the water; the library, the tallest shelf, to find a book about whales;
  the station, the ticket window, to wave at the train; the garden, the rose bush, to water the beans; the hill, the
  flat grey rock, to look far over the land; the beach, the upside-down boat, to search for shells; the barn, the heap
  of straw, to visit the horses; the castle, the broken gate, to play at kings and queens; the meadow, the stone wall,
  to pick flowers; the workshop, the tool chest, to borrow a hammer; the bakery, the warm oven, to smell the bread;
  the museum, the stone lion, to draw the dinosaur bones; the churchyard, the mossy wall, to listen to the bells; the
  orchard, the leaning ladder, to taste the first pears; the square, the round fountain, to hear the band; the
  lighthouse, the narrow door, to wave at the sailors; the quarry, the yellow crane, to collect fossils; the ice rink,
  the little hut, to learn to skate
dish, ingredient, found: apple pie, apples, under the old tree; mushroom soup, mushrooms, between the roots; berry
  cake, berries, along the stone wall; carrot stew, carrots, in the first row of the garden; nut bread, nuts, beneath
  the hazel bush; plum jam, plums, on the lowest branch; egg cake, eggs, in the straw of the barn; pea soup, pods, on
  the garden fence; lemon tea, lemons, in a blue bowl at the window; corn porridge, corn cobs, at the edge of the
  field; pear tart, pears, in the tall grass; onion bread, onions, in a sack behind the door; tomato sauce, tomatoes,
  behind the glass house; potato salad, potatoes, in the soft earth; cherry punch, cherries, beside the tall hedge;
  garlic butter, bulbs, on a string in the cellar
past: beat, beat; become, became; begin, began; break, broke; bring, brought; build, built; clap, clapped; come, came;
  dig, dug; do, did; drink, drank; eat, ate; fall, fell; feel, felt; find, found; give, gave; go, went; have, had;
  hang, hung; hear, heard; hide, hid; hold, held; hum, hummed; know, knew; lie, lay; lose, lost; make, made; meet,
  met; nod, nodded; put, put; rise, rose; run, ran; say, said; set, set; shake, shook; shine, shone; sing, sang; sit,
  sat; stand, stood; stop, stopped; take, took; tap, tapped; tell, told; think, thought; wake, woke; wear, wore
"""


def paragraphs(text):
    return [" ".join(paragraph.split()) for paragraph in text.strip().removeprefix("- ").split("\n- ")]


def table(text):
    rows = [[" ".join(cell.split()) for cell in row.split(",")] for row in text.split(";")]
    return rows if len(rows) > 1 else rows[0]


OPENINGS, PLOTS, ENDINGS, QUESTIONS = (
    list(map(paragraphs, text.split("\n\n"))) for text in (OPENINGS, PLOTS, ENDINGS, QUESTIONS)
)
WORDS = {name: table(entries) for name, entries in re.findall(r"^(\w.*?): ((?:.|\n  )+)", WORDS, re.MULTILINE)}
PAST = dict(WORDS["past"])


class Random:
    """Philox4x32-10 (Salmon et al., SC 2011): the numbers of one stream, the same in every version of Python."""

    def __init__(self, stream):
        self.stream, self.block, self.left = stream, 0, []

    def below(self, bound):
        if not self.left:
            a, b, c, d = self.block, 0, self.stream & 0xFFFFFFFF, self.stream >> 32
            low, high = KEY & 0xFFFFFFFF, KEY >> 32
            for _ in range(10):
                first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
                a, b, c, d = second >> 32 ^ b ^ low, second & 0xFFFFFFFF, first >> 32 ^ d ^ high, first & 0xFFFFFFFF
                low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
            self.block += 1
            self.left = [a, b, c, d]
        return self.left.pop(0) * bound >> 32

    def pick(self, entries):
        return entries[self.below(len(entries))]

    def pick_three(self, entries):
        """Three different ones."""
        size = len(entries)
        first, step, other = self.below(size), 1 + self.below(size - 1), 1 + self.below(size - 2)
        return [entries[(first + distance) % size] for distance in (0, step, other + (other >= step))]


def draw_slots(random):
    girls, boys, animals, traits = (random.pick_three(WORDS[name]) for name in ("girls", "boys", "animals", "traits"))
    about_animals = random.below(3) == 0
    slots = {"animal": animals[2]}
    for i, (name, prefix) in enumerate([("hero", ""), ("friend", "f")]):
        girl = random.below(2) == 0
        slots[name] = (girls if girl else boys)[i]
        slots[prefix + "kind"] = animals[i] if about_animals else "girl" if girl else "boy"
        slots[prefix + "trait"] = traits[i]
        for he, she in [("he", "she"), ("him", "her"), ("his", "her")]:
            slots[prefix + he] = she if girl else he
    slots["elder"] = random.pick(WORDS["elder"])
    place, other, _ = random.pick_three(WORDS["place, landmark, pastime"])
    slots["place"], slots["landmark"], slots["pastime"] = place
    slots["place2"], slots["landmark2"], _ = other
    slots["weather"], slots["scene"], slots["later"] = random.pick(WORDS["weather, scene, later"])
    for name in "home", "hobby", "season", "day", "fear", "colour", "thing", "plant":
        slots[name] = random.pick(WORDS[name])
    slots["treasure"] = slots["colour"] + " " + slots["thing"]
    slots["dish"], slots["ingredient"], slots["found"] = random.pick(WORDS["dish, ingredient, found"])
    some, more = 3 + random.below(9), 2 + random.below(9)
    given = 2 + random.below(some + more - 3)
    numbers = {"some": some, "more": more, "fewer": some - 1, "all": some + more, "given": given}
    for name, number in [*numbers.items(), ("left", some + more - given)]:
        slots[name] = WORDS["numbers"][number]
    return slots


def inflect(verb, past, plural):
    if verb == "be":
        return ("were" if plural else "was") if past else ("are" if plural else "is")
    if past and verb in PAST:
        return PAST[verb]
    if not past and (plural or verb == "have"):
        return verb if plural else "has"
    if re.search("[^aeiou]y$", verb):
        return verb[:-1] + ("ied" if past else "ies")
    if past:
        return verb + ("d" if verb[-1] == "e" else "ed")
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s")


def split_alternatives(text):
    """For the text after a `[`: the alternatives up to its `]`, and the text after that."""
    alternatives, begin, depth = [], 0, 0
    for at, character in enumerate(text):
        if depth == 0 and character in "|]":
            alternatives.append(text[begin:at])
            begin = at + 1
            if character == "]":
                return alternatives, text[begin:]
        depth += {"[": 1, "]": -1}.get(character, 0)
    raise ValueError(f"no ] in {text}")


def fill(text, slots, random, past):
    filled = ""
    while mark := re.search(r"[\[{<]", text):
        filled, text = filled + text[: mark.start()], text[mark.end() :]
        if mark[0] == "[":
            alternatives, text = split_alternatives(text)
            filled += fill(random.pick(alternatives), slots, random, past)
        elif mark[0] == "<":
            verb, text = text.split(">", 1)
            filled += inflect(verb.rstrip("+"), past, plural=verb.endswith("+"))
        else:
            slot, text = text.split("}", 1)
            name = slot.lower().removeprefix("a:")
            value = fill(slots[name], slots, random, past)
            if name != slot.lower():
                value = ("an " if re.match("[aeiou]|honest", value) else "a ") + value
            filled += value[0].upper() + value[1:] if slot[0].isupper() else value
    return filled + text


def write_story(number):
    random = Random(number)
    past = random.below(4) != 0
    slots = draw_slots(random)
    *plot, slots["lesson"] = random.pick(PLOTS)
    text = fill(random.pick(OPENINGS)[0], slots, random, past)
    more = ["[It <be>|All this <happen> on] {a:weather} {season} day, [and|when] {scene}.", *plot]
    text += " " + fill("\n\n".join(more), slots, random, past)
    return text + "\n\n" + fill("\n\n".join(random.pick(ENDINGS)), slots, random, past) + "\n"


def write_conversation(number):
    random = Random(number)
    past = random.below(4) != 0
    slots = draw_slots(random)
    opening = fill(random.pick(OPENINGS)[0], slots, random, past) + "\n\n"
    messages = []
    for question, answer in random.pick_three(QUESTIONS)[: 1 + random.below(3)]:
        messages.append({"role": "user", "content": opening + fill(question, slots, random, past)})
        messages.append({"role": "assistant", "content": fill(answer, slots, random, past)})
        opening = ""
    return messages


def write(file, field, make, first, count):
    file.write_text("".join(json.dumps({field: make(first + i)}) + "\n" for i in range(count)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "configs/corpora")
    parser.add_argument("--count", type=int, default=TRAINING, help="stories for training")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    first = FIRST_CONVERSATION + CONVERSATIONS_VALIDATION
    write(options.folder / "stories.jsonl", "text", write_story, 0, options.count)
    write(options.folder / "stories_validation.jsonl", "text", write_story, FIRST_VALIDATION, VALIDATION)
    write(options.folder / "chat.jsonl", "messages", write_conversation, first, CONVERSATIONS)
    write(
        options.folder / "chat_validation.jsonl", "messages", write_conversation, FIRST_CONVERSATION,
        CONVERSATIONS_VALIDATION,
    )  # fmt: skip


if __name__ == "__main__":
    main()
