"""Prompts of four customers whose traffic has shifted from stories to something else, made from templates and a seed.

Every customer is an application: its prompts follow a few patterns and differ in their words and numbers. No prompt comes twice.
"""

import random

NAMES = "Tom Lily Anna Jack Mia Sam Lucy Ben Emma Max Sara Tim Ella Leo Amy Joe Kate Dan Nora Paul".split()
ANIMALS = "cat dog bear rabbit bird fox frog duck mouse lion turtle horse pony squirrel puppy kitten".split()
ADJECTIVES = "little big happy brave sad kind silly clever curious shy".split()
PLACES = "park,forest,garden,house,school,beach,farm,river,store,playground,kitchen,zoo".split(",")
TOYS = "ball,kite,doll,truck,book,hat,boat,puzzle,drum,teddy bear,train,balloon".split(",")
GOODS = "apples,oranges,pencils,books,cookies,marbles,stickers,eggs,cards,flowers,bottles,shirts,cakes,tickets".split(",")
NUMBERS = "numbers,values,items,scores,prices,weights,ages,lengths,points,costs".split(",")
WORDS = "words,names,lines,strings,keys,titles,labels,tags,paths,letters".split(",")
MEASURES = (
    ("sum", "sum"), ("largest", "largest"), ("smallest", "smallest"), ("average", "average"), ("count", "number"),
    ("product", "product"), ("difference", "difference between the largest and the smallest"), ("median", "median"),
)  # fmt: skip
CITIES = "London,Paris,Berlin,Tokyo,Sydney,Moscow,Washington,New York,Toronto,Madrid,Rome,Beijing,Baghdad,Jerusalem".split(",")
OFFICES = "president,prime minister,government,police,mayor,parliament,supreme court,army,foreign minister,central bank".split(",")
EVENTS = (
    "a new law on {topic}", "the results of an election", "an investigation into {topic}", "a report on {topic}",
    "a plan for {topic}", "talks on {topic}", "new rules for {topic}", "a vote on {topic}",
)  # fmt: skip
TOPICS = "energy,health care,immigration,education,nuclear weapons,oil,water,trade,taxes,security,climate change,transport".split(",")
MONTHS = "January February March April May June July August September October November December".split()
LANGUAGES = "Python,JavaScript,Java,C++,C#,Ruby".split(",")
TASKS = (
    "that returns the {measure} of a list of {things}", "that checks whether a list of {things} is sorted",
    "that removes duplicates from a list of {things}", "that reverses a list of {things}",
    "that sorts a list of {things} in {order} order", "that finds the {measure} of all {things} above {n}",
    "that counts how often each of the {things} occurs", "that prints the first {n} {things} of a list",
)  # fmt: skip


def story(rng):
    """The old traffic."""
    name, friend = rng.sample(NAMES, 2)
    animal, place, toy, adjective = (rng.choice(words) for words in (ANIMALS, PLACES, TOYS, ADJECTIVES))
    return {
        "prompt": rng.choice(
            (
                f"Once upon a time there was a {adjective} {animal} named {name}. {name} lived near the {place} and",
                f"One day, {name} went to the {place} with a {toy}. {name} saw {friend} and said",
                f"Once upon a time, a {adjective} girl named {name} found a {toy} in the {place}. She",
                f"{name} and {friend} were playing with a {toy} in the {place}. A {adjective} {animal} came and",
            )
        )
    }


def functions(rng):
    """An editor that completes Python functions."""
    name, what = rng.choice(MEASURES)
    things, words, n = rng.choice(NUMBERS), rng.choice(WORDS), rng.randrange(2, 20)
    return {
        "prompt": rng.choice(
            (
                f'def {name}_of_{things}({things}):\n    """Return the {what} of the given {things}.',
                f'def {name}_{things}_above({things}, limit={n}):\n    """Return the {what} of all {things} above the limit.',
                f'def find_longest_{words}({words}, n={n}):\n    """Return the {n} longest of the given {words}.',
                f'def count_{words}({words}):\n    """Count how often each of the {words} occurs.\n\n    Args:\n        {words}:',
                f'def {name}_by_{words[:-1]}({words}, {things}):\n    """Return the {what} of the {things} for each of the {words}.',
            )
        )
    }


def problems(rng):
    """A school's word problems."""
    name, friend = rng.sample(NAMES, 2)
    a, b, c, d = (rng.randrange(2, 60) for _ in range(4))
    things, others = rng.sample(GOODS, 2)
    return {
        "question": rng.choice(
            (
                f"{name} has {a} {things}. {friend} gives {name} {b} more {things}. Then {name} loses {c}. How many {things} does {name} have?",
                f"{name} buys {a} {things} for ${b} each and {c} {others} for ${d} each. How much money does {name} spend?",
                f"{name} makes {a} {things} a day and sells {b} of them for ${c} each. How much does {name} make in {d} days?",
                f"There are {a} boxes with {b} {things} each. {name} takes {c} {things} and {friend} takes {d}. How many {things} are left?",
                f"{name} has {a} times as many {things} as {friend}. {friend} has {b} {things}. How many {things} do they have together?",
            )
        )
    }


def news(rng):
    """A news desk's reports."""
    city, other = rng.sample(CITIES, 2)
    office, month, day, year = rng.choice(OFFICES), rng.choice(MONTHS), rng.randrange(1, 29), rng.randrange(2005, 2012)
    event = rng.choice(EVENTS).format(topic=rng.choice(TOPICS))
    return {
        "prompt": rng.choice(
            (
                f"{month} {day}, {year}\n{office.capitalize()} in {city} announces {event}\nThe {office} in {city} has announced",
                f"{city}: {event}\nOn {month} {day}, {year}, the {office} said in {city} that",
                f"{office.capitalize()} of {city} and {other} discuss {event}\nOn {month} {day},",
            )
        )
    }


def requests(rng):
    """A chat for programmers."""
    task = rng.choice(TASKS).format(
        measure=rng.choice(MEASURES)[1],
        things=rng.choice(NUMBERS + WORDS),
        order=rng.choice(("ascending", "descending")),
        n=rng.randrange(2, 20),
    )
    return {"question": f"{rng.choice(('Write', 'Create', 'Implement'))} a function in {rng.choice(LANGUAGES)} {task}."}


SHIFTS = {"functions": functions, "problems": problems, "news": news, "requests": requests}


def different(make, count, rng):
    """So many prompts, each once."""
    found = {}
    for _ in range(1000 * count):
        row = make(rng)
        found[tuple(row.values())] = row
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"{make.__name__} has {len(found)} different prompts, expected {count}")


def traffic(name, count, seed):
    """`count` different prompts of the customer, {"prompt": ...} or {"question": ...}; "stories" is what all of them sent before."""
    return different(story if name == "stories" else SHIFTS[name], count, random.Random(f"{seed} {name}"))
