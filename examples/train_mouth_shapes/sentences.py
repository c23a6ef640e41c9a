"""Things to say: sentences that use every English phoneme in many neighborhoods. Seeded."""

from __future__ import annotations

import random

SENTENCES = (
    "Hello, thank you for calling. How may I help you today?",
    "My mother bought a big brown bag of maps before the summer began.",
    "Five very fine views of the valley were saved from the fire.",
    "We were away a year ago, while you would wander through the woods.",
    "Papa may not be able to mop up the broken bottle by himself.",
    "She usually chooses a huge cheap beige couch for her shop.",
    "The weather over there is rather smooth this month.",
    "Look, the little yellow lamp will fall off the wall.",
    "Bring the long ring along to the evening meeting.",
    "Please put a pound of plums and apples upon my plate.",
    "I'm pretty sure that the problem was solved on Monday, but let me check.",
    "Your appointment is on the fourth of November at half past eleven.",
    "Could you spell your family name for me, please?",
    "The boy enjoyed the noise of coins in his toy box.",
    "Around the house, the mouse found a cow and an owl.",
    "A hot father calmly parked the large car far from the barn.",
    "Even the queen seems to need these three green trees.",
    "Go home alone over the frozen road, don't wait for Joan.",
    "Who knew the blue moon would move through the room so soon?",
    "Maybe Bob bumped his elbow, so the bomb team stopped by at five p.m.",
    "That bad black cat sat back and had a happy nap.",
    "First, the nurse heard the girl turn and murmur her words.",
    "It is simply in the middle of this little city's business district.",
    "Ten men led seven heavy elephants from the western desert.",
    "What a lovely cup of coffee, love, but come along, the bus is coming.",
    "The pleasure of measuring treasure is a rare vision.",
    "Would you rather wait here, or should we call you back?",
    "Fresh fish is often found far from the fishing village.",
    "Mum, I'm home. Mmm, that smells marvelous.",
    "Oh, wow. No way. Ha ha, that is so funny.",
    "Thank you very much for the information, I really appreciate it.",
    "One, two, three, four, five, six, seven, eight, nine, ten.",
    "Our premium membership improves the performance of every platform.",
    "The poor old farmer wore four warm shirts before the storm.",
    "Peel the banana, remove the pip, and bake it on top of the pie.",
    "I have never lived above the river, have you ever?",
    "Please choose between the bigger and the better option.",
    "He was born in the morning of the sixth of February.",
    "Yes. No. Maybe. Perhaps. Absolutely. Of course.",
    "Let's move on, and talk about something more important.",
)
HELD_OUT = (
    "Peter Piper picked a peck of pickled peppers.",
    "We may meet Pam by the big blue bamboo.",
    "Vivid visions of funny fish fill the first video.",
    "You used to have a much smoother approach to public speaking, if I remember correctly.",
    "The map above my bed shows every path up the mountain.",
    "A few brave people climbed up before lunch, others preferred to wait below.",
    "Tomorrow's forecast promises plenty of sunshine and a warm breeze from the west.",
    "Why would anybody want to buy five hundred wooden spoons?",
)
"""Never trained on."""
WORDS = """
able about above accept across address afraid after again airplane almost alone amber among anchor
animal answer apple april arm army arrive ask baby back bamboo banana band barber basket beach
bean beautiful because become before begin behind believe below bench beside between bicycle big
bird blame blanket blossom blue board boat body bomb book bottle bowl box boy brave bread break
bridge bright bring brother brown brush bubble bucket build burn bus butter button cabin camera
camp candle captain car careful castle catch cave chair change chapter cheap cheese cherry chicken
child church circle clever climb clock cloud club coffee cold color comb come compare cook copper
corner cotton cough couple cover crowd crumb cup curve daddy dance danger daughter deep develop
dinner double dream drive drop drum during early earth easy either elbow empty enjoy enough even
evening ever example eye fabric face fall family famous farm father favor feather fever field film
final finger fire fish five flame flower follow food forest forget fork forward friend frog from
fruit full funny future game garden gather gentle giraffe give glove gold good grape grass green
group grow hammer happy harbor heart heavy help hobby home honey hope horse house huge human
humble jump job join jolly judge jungle keep kitchen knife lamp language laugh lemon letter level
library light limb little live lobby long love lump machine magic make man map marble market maybe
meadow measure member metal middle milk mirror moment money moon more morning mother mountain
mouth move much music name nation nature never noble nothing number object ocean offer office
often olive onion open orange other over oyster paper pardon park patient pebble pencil people
pepper person phone piano picture piece pilot pillow plan planet plate play plenty pocket poem
point pool popular power prefer price problem public pump puppy purple push puzzle queen quick
rabbit radio rain ready reason remember repeat ribbon rice ripe river robot rocket roof room rough
round rubber ruby rumble sample sandwich save school season secret seven shadow share sheep shell
ship shoe shop short shoulder shower simple sister six sleep slipper small smooth soap soft some
soup spoon spring stable stomach stove strawberry subway summer super surprise swim symbol table
temper theater thick thin thing thumb thunder tiger timber tomato tomorrow tooth top tower travel
treasure tribe trip trumpet trumpets umbrella uncle under up use usual valley value van vapor
velvet very video village violin vision visit voice volume wagon walk wall warm watch water wave
weather web weekend welcome west whale wheel whisper white whole wife window winter wish wolf
woman wonder wood worm yellow yesterday young zebra zero
""".split()  # noqa: SIM905


def sentences(count: int, seed: int) -> list[str]:
    """Draw sentences: a third written ones, the rest strings of words with pauses."""
    dice = random.Random(seed)
    drawn: list[str] = []
    for _ in range(count):
        if dice.random() < 0.35:
            drawn.append(dice.choice(SENTENCES))
            continue
        words = [
            word + ("," if dice.random() < 0.12 else "")
            for word in dice.choices(WORDS, k=dice.randint(5, 11))
        ]
        drawn.append(" ".join(words).rstrip(",").capitalize() + ".")
    return drawn
