#include "story_words.h"

#include "titan/base/error.h"

namespace titan {
namespace {

constexpr std::string_view kGirlNames[] = {
    "Anna",  "Mia",   "Lena",  "Rosa", "Ella",  "Nora",  "Ruth",  "Ida",   "Clara", "Greta", "Lucy",  "Maya",
    "Sofia", "Hana",  "Zoe",   "Iris", "Tilda", "Wanda", "Olive", "Petra", "Frida", "Juno",  "Amira", "Dora",
    "Kiri",  "Lily",  "Marta", "Nina", "Alma",  "Berta", "Celia", "Daisy", "Edda",  "Flora", "Hilda", "Jana",
    "Kira",  "Lotte", "Mira",  "Olga", "Pia",   "Rita",  "Selma", "Thea",  "Uma",   "Vera",  "Yara",  "Wilma"};
constexpr std::string_view kBoyNames[] = {
    "Tom",   "Ben",    "Max",    "Leo",   "Sam",   "Otto",  "Finn",   "Jack",  "Oscar",   "Hugo",  "Emil",   "Paul",
    "Noah",  "Theo",   "Omar",   "Karl",  "Ravi",  "Felix", "Jonas",  "Milo",  "Pip",     "Rufus", "Simon",  "Toby",
    "Ivan",  "Alfie",  "Bruno",  "Kenji", "Adam",  "Boris", "Cedric", "David", "Elias",   "Fritz", "Georg",  "Henry",
    "Isaac", "Jasper", "Konrad", "Linus", "Marek", "Nils",  "Oliver", "Peter", "Quentin", "Robin", "Stefan", "Viktor"};
constexpr std::string_view kAnimals[] = {"fox",     "rabbit",  "bear",   "mouse",  "owl",      "cat",      "dog",
                                         "duck",    "frog",    "goat",   "otter",  "hedgehog", "squirrel", "sheep",
                                         "crow",    "badger",  "mole",   "beaver", "goose",    "pony",     "turtle",
                                         "robin",   "heron",   "donkey", "swan",   "wolf",     "lamb",     "hare",
                                         "raccoon", "sparrow", "deer",   "stork",  "lizard",   "magpie"};
constexpr std::string_view kTraits[] = {
    "brave",      "curious",   "shy",     "clever", "cheerful", "gentle",   "stubborn", "quiet",   "kind",
    "busy",       "dreamy",    "careful", "merry",  "honest",   "playful",  "proud",    "patient", "lively",
    "thoughtful", "impatient", "young",   "little", "friendly", "lonely",   "calm",     "eager",   "generous",
    "grumpy",     "hopeful",   "modest",  "nosy",   "polite",   "restless", "sleepy",   "wise",    "wild"};
constexpr std::string_view kHomes[] = {"in a small house by the river",
                                       "at the edge of a dark forest",
                                       "above the bakery in a busy town",
                                       "on a farm behind the green hills",
                                       "in a village near the sea",
                                       "in a crooked cottage at the end of the lane",
                                       "beside a wide blue lake",
                                       "high up in the mountains",
                                       "in a red house with a round window",
                                       "next to the railway station",
                                       "under the roots of an old oak tree",
                                       "on a little island",
                                       "in a house full of books",
                                       "at the top of a windy hill",
                                       "near the harbour with its many ships",
                                       "in a green and narrow valley",
                                       "in a tall tower with crooked stairs",
                                       "behind the school in a yellow tent",
                                       "on a boat that never left the shore",
                                       "where the road ends and the moor begins",
                                       "in a warm room over the stables",
                                       "among the vineyards in the south"};
constexpr std::string_view kHobbies[] = {"to paint pictures of boats",
                                         "to sing old songs",
                                         "to count the stars",
                                         "to collect smooth stones",
                                         "to climb trees",
                                         "to bake bread",
                                         "to listen to stories",
                                         "to draw maps of faraway lands",
                                         "to build towers of wood",
                                         "to watch the clouds",
                                         "to play the drum",
                                         "to swim in cold water",
                                         "to read by candlelight",
                                         "to feed the birds",
                                         "to mend broken things",
                                         "to walk along the shore",
                                         "to plant seeds",
                                         "to make up riddles",
                                         "to ride a bicycle",
                                         "to dance in the kitchen",
                                         "to bake little cakes",
                                         "to write long letters",
                                         "to carve animals out of wood",
                                         "to chase butterflies",
                                         "to listen to the rain",
                                         "to paint the fence",
                                         "to look after the hens",
                                         "to read the newspaper aloud",
                                         "to whistle old tunes",
                                         "to fly paper planes"};
constexpr std::string_view kElders[] = {"{his} grandmother", "{his} grandfather", "{his} aunt",    "{his} uncle",
                                        "{his} mother",      "{his} father",      "the old baker", "the teacher",
                                        "the gardener",      "the miller",        "the postman",   "the shepherd",
                                        "the old sailor",    "the doctor"};
constexpr std::string_view kColours[] = {"red",     "blue",    "green",   "yellow",   "white", "orange", "purple",
                                         "silver",  "golden",  "striped", "wooden",   "tiny",  "old",    "shiny",
                                         "brown",   "pink",    "grey",    "black",    "soft",  "heavy",  "round",
                                         "crooked", "painted", "rusty",   "precious", "paper", "copper", "velvet"};
constexpr std::string_view kObjects[] = {
    "kite",   "ball",    "hat",    "drum",     "lantern", "scarf",     "boat",   "key",     "cup",     "whistle",
    "bell",   "box",     "button", "umbrella", "basket",  "book",      "coat",   "spoon",   "flute",   "ring",
    "puppet", "compass", "mirror", "bucket",   "clock",   "feather",   "marble", "blanket", "ladder",  "wagon",
    "candle", "violin",  "ribbon", "needle",   "teapot",  "hammer",    "mitten", "sledge",  "trumpet", "magnet",
    "locket", "pillow",  "broom",  "saddle",   "helmet",  "telescope", "anchor", "map",     "pencil",  "jar"};
constexpr std::string_view kSeasons[] = {"spring", "summer", "autumn", "winter"};
constexpr std::string_view kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr std::string_view kFlowers[] = {"sunflower",  "rose",        "tulip",  "pumpkin",    "bean",
                                         "apple tree", "cherry tree", "poppy",  "melon",      "lily",
                                         "pea plant",  "carrot",      "daisy",  "strawberry", "walnut tree",
                                         "cabbage",    "cucumber",    "violet", "turnip",     "plum tree"};
constexpr std::string_view kFears[] = {
    "the dark",         "deep water",          "the big dog next door", "thunder",       "the high tower",
    "the old bridge",   "the howling wind",    "the empty barn",        "the cellar",    "the night train",
    "the steep stairs", "the forest at night", "the grey goose",        "the deep well", "the cold sea"};

constexpr StoryWeather kWeathers[] = {
    {"sunny", "the light <dance> on every roof", "the sun <be> low and golden"},
    {"rainy", "the rain <tap> on the windows", "the rain <have> stopped and everything <smell> fresh"},
    {"windy", "the wind <shake> the tall trees", "the wind <be> no more than a whisper"},
    {"foggy", "the fog <hide> the far hills", "the fog <have> lifted and the hills <be+> clear again"},
    {"warm", "the bees <hum+> over the grass", "the warm air <smell> of hay"},
    {"cold", "everybody <wear> a thick coat", "the windows of all the houses <glow+> warmly"},
    {"cloudy", "grey clouds <hang+> over the roofs", "a single star <shine> between the clouds"},
    {"stormy", "the thunder <roll> over the valley", "the storm <have> moved on to the sea"},
    {"bright", "the sky <be> as blue as a new plate", "the sky <turn> pink and then dark blue"},
    {"misty", "tiny drops <sit+> on every leaf", "the mist <be> gone and the moon <rise>"},
    {"frosty", "thin ice <cover> the puddles", "the ice <have> melted in the afternoon light"},
    {"hot", "even the dogs <lie+> in the shade", "a cool breeze <come> up from the river"},
    {"grey", "the smoke of the chimneys <hang> low", "the first lamps <be+> lit along the street"},
    {"mild", "the snails <cross+> the path", "the frogs <begin+> their evening concert"}};

constexpr StoryPlace kPlaces[] = {{"the old mill", "the big stone wheel", "to watch the water"},
                                  {"the market", "the fruit stand", "to buy fresh bread"},
                                  {"the harbour", "the stack of wet ropes", "to see the ships"},
                                  {"the forest", "the hollow tree", "to look for mushrooms"},
                                  {"the school", "the long bench", "to practise for the play"},
                                  {"the lake", "the wooden pier", "to feed the ducks"},
                                  {"the bridge", "the iron lamp", "to throw sticks into the water"},
                                  {"the library", "the tallest shelf", "to find a book about whales"},
                                  {"the station", "the ticket window", "to wave at the train"},
                                  {"the garden", "the rose bush", "to water the beans"},
                                  {"the hill", "the flat grey rock", "to look far over the land"},
                                  {"the beach", "the upside-down boat", "to search for shells"},
                                  {"the barn", "the heap of straw", "to visit the horses"},
                                  {"the castle", "the broken gate", "to play at kings and queens"},
                                  {"the meadow", "the stone wall", "to pick flowers"},
                                  {"the workshop", "the tool chest", "to borrow a hammer"},
                                  {"the bakery", "the warm oven", "to smell the bread"},
                                  {"the museum", "the stone lion", "to draw the dinosaur bones"},
                                  {"the churchyard", "the mossy wall", "to listen to the bells"},
                                  {"the orchard", "the leaning ladder", "to taste the first pears"},
                                  {"the square", "the round fountain", "to hear the band"},
                                  {"the lighthouse", "the narrow door", "to wave at the sailors"},
                                  {"the quarry", "the yellow crane", "to collect fossils"},
                                  {"the ice rink", "the little hut", "to learn to skate"}};

constexpr StoryDish kDishes[] = {{"apple pie", "apples", "under the old tree"},
                                 {"mushroom soup", "mushrooms", "between the roots"},
                                 {"berry cake", "berries", "along the stone wall"},
                                 {"carrot stew", "carrots", "in the first row of the garden"},
                                 {"nut bread", "nuts", "beneath the hazel bush"},
                                 {"plum jam", "plums", "on the lowest branch"},
                                 {"egg cake", "eggs", "in the straw of the barn"},
                                 {"pea soup", "pods", "on the garden fence"},
                                 {"lemon tea", "lemons", "in a blue bowl at the window"},
                                 {"corn porridge", "corn cobs", "at the edge of the field"},
                                 {"pear tart", "pears", "in the tall grass"},
                                 {"onion bread", "onions", "in a sack behind the door"},
                                 {"tomato sauce", "tomatoes", "behind the glass house"},
                                 {"potato salad", "potatoes", "in the soft earth"},
                                 {"cherry punch", "cherries", "beside the tall hedge"},
                                 {"garlic butter", "bulbs", "on a string in the cellar"}};

constexpr std::string_view kNumbers[] = {
    "zero",     "one",      "two",    "three",      "four",       "five",         "six",        "seven",   "eight",
    "nine",     "ten",      "eleven", "twelve",     "thirteen",   "fourteen",     "fifteen",    "sixteen", "seventeen",
    "eighteen", "nineteen", "twenty", "twenty-one", "twenty-two", "twenty-three", "twenty-four"};

}  // namespace

std::span<const std::string_view> story_girl_names() { return kGirlNames; }
std::span<const std::string_view> story_boy_names() { return kBoyNames; }
std::span<const std::string_view> story_animals() { return kAnimals; }
std::span<const std::string_view> story_traits() { return kTraits; }
std::span<const std::string_view> story_homes() { return kHomes; }
std::span<const std::string_view> story_hobbies() { return kHobbies; }
std::span<const std::string_view> story_elders() { return kElders; }
std::span<const std::string_view> story_colours() { return kColours; }
std::span<const std::string_view> story_objects() { return kObjects; }
std::span<const std::string_view> story_seasons() { return kSeasons; }
std::span<const std::string_view> story_days() { return kDays; }
std::span<const std::string_view> story_flowers() { return kFlowers; }
std::span<const std::string_view> story_fears() { return kFears; }
std::span<const StoryWeather> story_weathers() { return kWeathers; }
std::span<const StoryPlace> story_places() { return kPlaces; }
std::span<const StoryDish> story_dishes() { return kDishes; }

std::string_view number_word(int number) {
  TITAN_CHECK(number >= 0 && number < static_cast<int>(std::size(kNumbers)), number);
  return kNumbers[number];
}

}  // namespace titan
