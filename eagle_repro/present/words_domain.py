"""Words of the figures and answers of 07_domain, in two languages."""

from __future__ import annotations

DOMAIN: dict[str, dict[str, str]] = {
    "en": {
        "heat_tau_code": "On {set} a head trained on code gives {left} tokens a cycle, one trained without {right}",
        "heat_tau": "A cycle gives from {low} ({worst}) to {high} tokens ({best})",
        "heat_speedup": "The same target is {low}x ({worst}) to {high}x ({best}) as fast",
        "head_on_set": "{head} on {set}",
        "axis_sets": "right of the line: out of domain, and groups; small print: 95% bootstrap interval",
        "gain_more": "The largest clear difference: on {set} {left} gives {gain} tokens a cycle more than {right}",
        "gain_fewer": "The largest clear difference: on {set} {left} gives {gain} tokens a cycle fewer than {right}",
        "gain_none": "No difference between the heads is established here",
        "panel_against": "{left}\nbeyond {right}",
        "axis_tau_gain": "tokens a cycle",
        "filled_clear": "filled: the interval excludes 0",
    },
    "ru": {
        "heat_tau_code": "На {set} голова, обученная на коде, даёт {left} токена за цикл, без кода {right}",
        "heat_tau": "Цикл даёт от {low} ({worst}) до {high} токена ({best})",
        "heat_speedup": "Одна и та же цель: от {low}x ({worst}) до {high}x ({best})",
        "head_on_set": "{head} на {set}",
        "axis_sets": "правее линии: вне домена и группы; мелко: 95% бутстрэп-интервал",
        "gain_more": "Наибольшая надёжная разница: на {set} {left} даёт на {gain} токена за цикл больше, чем {right}",
        "gain_fewer": "Наибольшая надёжная разница: на {set} {left} даёт на {gain} токена за цикл меньше, чем {right}",
        "gain_none": "Разница между головами здесь не установлена",
        "panel_against": "{left}\nпротив {right}",
        "axis_tau_gain": "токенов за цикл",
        "filled_clear": "закрашено: интервал не накрывает 0",
    },
}
#: What each statement of measure.domain says.
STATEMENTS = {
    "en": {
        "code_helps": "On code a head trained on code alone gives more tokens a cycle than one trained without code",
        "code_costs": "On chat a head trained on code alone gives fewer tokens a cycle than one trained without code",
        "russian_helps": "On Russian a head whose corpus holds Russian answers gives more tokens a cycle",
        "russian_costs": "On in-domain English that head gives fewer tokens a cycle",
    },
    "ru": {
        "code_helps": "На коде голова, обученная только на коде, даёт больше токенов за цикл, чем обученная без кода",
        "code_costs": "В диалоге голова, обученная только на коде, даёт меньше токенов за цикл, чем обученная без кода",
        "russian_helps": "На русском голова, в корпусе которой есть русские ответы, даёт больше токенов за цикл",
        "russian_costs": "На английских вопросах своего домена эта голова даёт меньше токенов за цикл",
    },
}
#: The sentences of the answers; {numbers}: both values, the difference and its interval.
SENTENCES = {
    "en": {
        "numbers": "{left} {left_tau}, {right} {right_tau}, difference {gain} {interval}",
        "holds": "{statement}: this holds ({numbers}).",
        "does not hold": "{statement}: this does not hold, it is the other way round ({numbers}).",
        "undecided": "{statement}: undecided ({numbers}).",
        "lacks": "{statement}: not measured here, for lack of {lacks}.",
        "faster": " In speedup: {left_speed} and {right_speed}, difference {gain} {interval}, {verdict}.",
        "verdict holds": "which says the same",
        "verdict does not hold": "which says the opposite",
        "verdict undecided": "which decides nothing",
        "head": "the head {name}",
        "questions": "questions of these sets",
        "mix": "What does the training mix do, with the language held fixed?",
        "russian": "And for Russian?",
        "mix_both": "So with the language held fixed the training texts decide: what a head gains where it was "
        "trained, it lacks elsewhere.",
        "mix_helps": "So with the language held fixed the training texts count: they help where they are of the kind "
        "that is asked for. A loss elsewhere is not established here.",
        "mix_opposite": "So training on one kind of text alone did not pay here, not even on that kind.",
        "mix_open": "So this record does not settle what the training mix does.",
        "russian_data": "So the training texts were a cause: Russian answers in the corpus close {percent} of the gap "
        "between Russian and in-domain English. What is left may be the language, the questions, or too little Russian "
        "in the corpus.",
        "russian_all": "So it was the training texts: with Russian answers in the corpus a cycle gives more on Russian "
        "than on in-domain English.",
        "repeats": " A part of it may be the text: {russian} of the target's own Russian repeats itself, against "
        "{english} of its in-domain English.",
        "russian_language": "So more Russian in the corpus did not help here.",
        "russian_open": "So this record does not settle whether it was the language or the training texts.",
    },
    "ru": {
        "numbers": "{left} {left_tau}, {right} {right_tau}, разница {gain} {interval}",
        "holds": "{statement}: выполняется ({numbers}).",
        "does not hold": "{statement}: не выполняется, наоборот ({numbers}).",
        "undecided": "{statement}: не решено ({numbers}).",
        "lacks": "{statement}: здесь не измерено, не хватает: {lacks}.",
        "faster": " В ускорении: {left_speed} и {right_speed}, разница {gain} {interval}, {verdict}.",
        "verdict holds": "и это говорит то же",
        "verdict does not hold": "и это говорит обратное",
        "verdict undecided": "и это ничего не решает",
        "head": "голова {name}",
        "questions": "вопросы этих наборов",
        "mix": "Что делает состав обучающих текстов, если язык один и тот же?",
        "russian": "А для русского?",
        "mix_both": "Значит, при одном языке решают обучающие тексты: что голова выигрывает там, чему её учили, "
        "того ей не хватает в другом.",
        "mix_helps": "Значит, при одном языке обучающие тексты важны: они помогают там, где совпадают с вопросами. "
        "Потеря в другом здесь не установлена.",
        "mix_opposite": "Значит, обучение только на одном виде текста здесь не окупилось даже на нём самом.",
        "mix_open": "Значит, эта запись не решает, что делает состав обучающих текстов.",
        "russian_data": "Значит, дело было и в обучающих текстах: русские ответы в корпусе закрывают {percent} разрыва "
        "между русским и английским своего домена. Остальное может быть делом языка, самих вопросов или того, "
        "что русского в корпусе мало.",
        "russian_all": "Значит, дело было в обучающих текстах: с русскими ответами в корпусе цикл даёт на русском "
        "больше, чем на английском своего домена.",
        "repeats": " Отчасти дело может быть в самом тексте: {russian} русского у этой цели - повторы, в английском "
        "своего домена {english}.",
        "russian_language": "Значит, русский в корпусе здесь не помог.",
        "russian_open": "Значит, эта запись не решает, язык это или обучающие тексты.",
    },
}
