# ruff: noqa: E501, SIM905 - one table row is one line, and a list of names reads best as one string.
"""Nouns, adjectives and verbs in four languages, as tables.

Cells are separated by ``;`` (English; classes; German; French; Romanian), synonyms within a cell by ``/``.
Noun classes: p person, a animal, b a place to be in, g a place to go to, o thing, r something to read, v vehicle, f food.
German nouns: gender singular plural (gender ``w``: masculine of the weak declension). French: gender singular plural.
Romanian: gender (m, f, n) singular plural [definite singular where irregular].
Adjectives: German stem; French place (b before, a after) masculine feminine; Romanian m.sg f.sg m.pl f.pl.
Verbs: English base, third person, past, participle; German auxiliary (h, s) infinitive, third person, participle;
French auxiliary (a, e) infinitive, singular, plural, participle, future stem; Romanian participle, singular, plural,
short infinitive, subjunctive.
"""

NOUNS = """
teacher teachers; p; m Lehrer Lehrer; m professeur professeurs / m enseignant enseignants; m profesor profesori
doctor doctors / physician physicians; p; m Arzt Ärzte; m médecin médecins / m docteur docteurs; m medic medici / m doctor doctori
farmer farmers; p; w Bauer Bauern / m Landwirt Landwirte; m fermier fermiers / m paysan paysans; m fermier fermieri
student students; p; w Student Studenten; m étudiant étudiants; m student studenți
writer writers / author authors; p; m Schriftsteller Schriftsteller / m Autor Autoren; m écrivain écrivains; m scriitor scriitori
painter painters; p; m Maler Maler; m peintre peintres; m pictor pictori
captain captains; p; m Kapitän Kapitäne; m capitaine capitaines; m căpitan căpitani
mayor mayors; p; m Bürgermeister Bürgermeister; m maire maires; m primar primari
baker bakers; p; m Bäcker Bäcker; m boulanger boulangers; m brutar brutari
judge judges; p; m Richter Richter; m juge juges; m judecător judecători
engineer engineers; p; m Ingenieur Ingenieure; m ingénieur ingénieurs; m inginer ingineri
brother brothers; p; m Bruder Brüder; m frère frères; m frate frați
sister sisters; p; f Schwester Schwestern; f sœur sœurs; f soră surori
mother mothers; p; f Mutter Mütter; f mère mères; f mamă mame
woman women; p; f Frau Frauen; f femme femmes; f femeie femei
man men; p; m Mann Männer; m homme hommes; m bărbat bărbați
girl girls; p; n Mädchen Mädchen; f fille filles; f fată fete
boy boys; p; w Junge Jungen; m garçon garçons; m băiat băieți
queen queens; p; f Königin Königinnen; f reine reines; f regină regine
king kings; p; m König Könige; m roi rois; m rege regi
neighbour neighbours; p; w Nachbar Nachbarn; m voisin voisins; m vecin vecini
friend friends; p; m Freund Freunde; m ami amis; m prieten prieteni
child children; p; n Kind Kinder; m enfant enfants; m copil copii
driver drivers; p; m Fahrer Fahrer; m chauffeur chauffeurs / m conducteur conducteurs; m șofer șoferi
soldier soldiers; p; w Soldat Soldaten; m soldat soldats; m soldat soldați
lawyer lawyers; p; m Anwalt Anwälte; m avocat avocats; m avocat avocați
nurse nurses; p; f Krankenschwester Krankenschwestern; f infirmière infirmières; f asistentă asistente
journalist journalists / reporter reporters; p; w Journalist Journalisten; m journaliste journalistes; m jurnalist jurnaliști
actress actresses; p; f Schauspielerin Schauspielerinnen; f actrice actrices; f actriță actrițe
house houses; b g; n Haus Häuser; f maison maisons; f casă case
school schools; b g; f Schule Schulen; f école écoles; f școală școli
church churches; b g; f Kirche Kirchen; f église églises; f biserică biserici
hospital hospitals; b g; n Krankenhaus Krankenhäuser; m hôpital hôpitaux; n spital spitale
museum museums; b g; n Museum Museen; m musée musées; n muzeu muzee
hotel hotels; b g; n Hotel Hotels; m hôtel hôtels; n hotel hoteluri
library libraries; b g; f Bibliothek Bibliotheken / f Bücherei Büchereien; f bibliothèque bibliothèques; f bibliotecă biblioteci
station stations; b g; m Bahnhof Bahnhöfe; f gare gares; f gară gări
theatre theatres; b g; n Theater Theater; m théâtre théâtres; n teatru teatre
castle castles; b g; n Schloss Schlösser / f Burg Burgen; m château châteaux; n castel castele
factory factories; b g; f Fabrik Fabriken; f usine usines; f fabrică fabrici
shop shops / store stores; b g; m Laden Läden / n Geschäft Geschäfte; m magasin magasins / f boutique boutiques; n magazin magazine
office offices; b g; n Büro Büros; m bureau bureaux; n birou birouri
garden gardens; b g; m Garten Gärten; m jardin jardins; f grădină grădini
village villages; b g; n Dorf Dörfer; m village villages; n sat sate
forest forests; b g; m Wald Wälder; f forêt forêts; f pădure păduri
harbour harbours / port ports; b g; m Hafen Häfen; m port ports; n port porturi
market markets; b g; m Markt Märkte; m marché marchés; f piață piețe
kitchen kitchens; b; f Küche Küchen; f cuisine cuisines; f bucătărie bucătării
park parks; b g; m Park Parks; m parc parcs; n parc parcuri
letter letters; r; m Brief Briefe; f lettre lettres; f scrisoare scrisori
book books; r; n Buch Bücher; m livre livres; f carte cărți
newspaper newspapers; r; f Zeitung Zeitungen; m journal journaux; n ziar ziare
report reports; r; m Bericht Berichte; m rapport rapports; n raport rapoarte
map maps; r; f Karte Karten / f Landkarte Landkarten; f carte cartes; f hartă hărți
story stories / tale tales; r; f Geschichte Geschichten; f histoire histoires; f poveste povești
poem poems; r; n Gedicht Gedichte; m poème poèmes; f poezie poezii
picture pictures / painting paintings; o; n Bild Bilder / n Gemälde Gemälde; m tableau tableaux; n tablou tablouri
clock clocks; o; f Uhr Uhren; f horloge horloges; n ceas ceasuri
lamp lamps; o; f Lampe Lampen; f lampe lampes; f lampă lămpi
key keys; o; m Schlüssel Schlüssel; f clé clés; f cheie chei
bag bags; o; f Tasche Taschen; m sac sacs; f geantă genți
coat coats; o; m Mantel Mäntel; m manteau manteaux; n palton paltoane
chair chairs; o; m Stuhl Stühle; f chaise chaises; n scaun scaune
table tables; o; m Tisch Tische; f table tables; f masă mese
box boxes; o; f Kiste Kisten / m Kasten Kästen; f boîte boîtes; f cutie cutii
ring rings; o; m Ring Ringe; f bague bagues; n inel inele
camera cameras; o; f Kamera Kameras; m appareil appareils; f cameră camere
umbrella umbrellas; o; m Regenschirm Regenschirme; m parapluie parapluies; f umbrelă umbrele
car cars; v; n Auto Autos / m Wagen Wagen; f voiture voitures; f mașină mașini
boat boats; v; n Boot Boote; m bateau bateaux; f barcă bărci
ship ships; v; n Schiff Schiffe; m navire navires; f navă nave
bicycle bicycles / bike bikes; v; n Fahrrad Fahrräder; m vélo vélos / f bicyclette bicyclettes; f bicicletă biciclete
bread breads; f; n Brot Brote; m pain pains; f pâine pâini
cake cakes; f; m Kuchen Kuchen; m gâteau gâteaux; f prăjitură prăjituri
apple apples; f; m Apfel Äpfel; f pomme pommes; n măr mere
soup soups; f; f Suppe Suppen; f soupe soupes; f supă supe
cheese cheeses; f; m Käse Käse; m fromage fromages; f brânză brânze
fish fishes; f; m Fisch Fische; m poisson poissons; m pește pești
dog dogs; a; m Hund Hunde; m chien chiens; m câine câini
cat cats; a; f Katze Katzen; m chat chats; f pisică pisici
horse horses; a; n Pferd Pferde; m cheval chevaux; m cal cai
bird birds; a; m Vogel Vögel; m oiseau oiseaux; f pasăre păsări
"""

ADJECTIVES = """
old; p a; alt; b vieux vieille; bătrân bătrână bătrâni bătrâne
old; b o r v; alt; b vieux vieille / a ancien ancienne; vechi veche vechi vechi
young; p a; jung; b jeune jeune; tânăr tânără tineri tinere
new; b o r v; neu; b nouveau nouvelle; nou nouă noi noi
big / large; b o v a; groß; b grand grande; mare mare mari mari
tall; p; groß; b grand grande; înalt înaltă înalți înalte
small / little; b o v r a; klein; b petit petite; mic mică mici mici
beautiful; b o v p a; schön; b beau belle; frumos frumoasă frumoși frumoase
long; r; lang; b long longue; lung lungă lungi lungi
red; o v f; rot; a rouge rouge; roșu roșie roșii roșii
blue; o v; blau; a bleu bleue; albastru albastră albaștri albastre
green; o v f; grün; a vert verte; verde verde verzi verzi
white; o v b a; weiß; a blanc blanche; alb albă albi albe
black; o v a; schwarz; a noir noire; negru neagră negri negre
yellow; o v; gelb; a jaune jaune; galben galbenă galbeni galbene
heavy; o; schwer; a lourd lourde; greu grea grei grele
famous; p r b; berühmt / bekannt; a célèbre célèbre; faimos faimoasă faimoși faimoase / celebru celebră celebri celebre
poor; p; arm; a pauvre pauvre; sărac săracă săraci sărace
rich; p; reich; a riche riche; bogat bogată bogați bogate
tired; p a; müd müde; a fatigué fatiguée; obosit obosită obosiți obosite
sick / ill; p a; krank; a malade malade; bolnav bolnavă bolnavi bolnave
happy; p; glücklich; a heureux heureuse / a content contente; fericit fericită fericiți fericite
empty; b; leer; a vide vide; gol goală goi goale
dirty; b o v a; schmutzig; a sale sale; murdar murdară murdari murdare
broken; o v; kaputt; a cassé cassée; stricat stricată stricați stricate
warm; f; warm; a chaud chaude; cald caldă calzi calde
cold; f; kalt; a froid froide; rece rece reci reci
fresh; f; frisch; a frais fraîche; proaspăt proaspătă proaspeți proaspete
strange; r o p b; seltsam / merkwürdig; a étrange étrange; ciudat ciudată ciudați ciudate
friendly / kind; p a; freundlich; a gentil gentille; prietenos prietenoasă prietenoși prietenoase
strong; p a; stark; a fort forte; puternic puternică puternici puternice
modern; b v; modern; a moderne moderne; modern modernă moderni moderne
important; r; wichtig; a important importante; important importantă importanți importante
quiet; b p; ruhig / still; a calme calme; liniștit liniștită liniștiți liniștite
interesting; r; interessant; a intéressant intéressante; interesant interesantă interesanți interesante
"""

VERBS_WITH_OBJECT = """
buy buys bought bought; o r v f; h kaufen kauft gekauft / h erwerben erwirbt erworben; a acheter achète achètent acheté achèter; cumpărat cumpără cumpără cumpăra cumpere
sell sells sold sold; o r v f b; h verkaufen verkauft verkauft; a vendre vend vendent vendu vendr; vândut vinde vând vinde vândă
find finds found found; o r v a; h finden findet gefunden; a trouver trouve trouvent trouvé trouver; găsit găsește găsesc găsi găsească
lose loses lost lost; o r; h verlieren verliert verloren; a perdre perd perdent perdu perdr; pierdut pierde pierd pierde piardă
repair repairs repaired repaired / fix fixes fixed fixed; o v b; h reparieren repariert repariert; a réparer répare réparent réparé réparer; reparat repară repară repara repare
paint paints painted painted; b v o; h malen malt gemalt; a peindre peint peignent peint peindr; pictat pictează pictează picta picteze
read reads read read; r; h lesen liest gelesen; a lire lit lisent lu lir; citit citește citesc citi citească
write writes wrote written; r; h schreiben schreibt geschrieben / h verfassen verfasst verfasst; a écrire écrit écrivent écrit écrir; scris scrie scriu scrie scrie
open opens opened opened; b; h öffnen öffnet geöffnet; a ouvrir ouvre ouvrent ouvert ouvrir; deschis deschide deschid deschide deschidă
close closes closed closed / shut shuts shut shut; b; h schließen schließt geschlossen; a fermer ferme ferment fermé fermer; închis închide închid închide închidă
bring brings brought brought; o r f; h bringen bringt gebracht; a apporter apporte apportent apporté apporter; adus aduce aduc aduce aducă
forget forgets forgot forgotten; o r; h vergessen vergisst vergessen; a oublier oublie oublient oublié oublier; uitat uită uită uita uite
see sees saw seen; o r v b a; h sehen sieht gesehen; a voir voit voient vu verr; văzut vede văd vedea vadă
describe describes described described; b o r v; h beschreiben beschreibt beschrieben; a décrire décrit décrivent décrit décrir; descris descrie descriu descrie descrie
hide hides hid hidden; o r; h verstecken versteckt versteckt; a cacher cache cachent caché cacher; ascuns ascunde ascund ascunde ascundă
clean cleans cleaned cleaned; b o v; h putzen putzt geputzt / h reinigen reinigt gereinigt; a nettoyer nettoie nettoient nettoyé nettoier; curățat curăță curăță curăța curețe
build builds built built; b v; h bauen baut gebaut; a construire construit construisent construit construir; construit construiește construiesc construi construiască
steal steals stole stolen; o v a; h stehlen stiehlt gestohlen; a voler vole volent volé voler; furat fură fură fura fure
visit visits visited visited; b; h besuchen besucht besucht; a visiter visite visitent visité visiter; vizitat vizitează vizitează vizita viziteze
eat eats ate eaten; f; h essen isst gegessen; a manger mange mangent mangé manger; mâncat mănâncă mănâncă mânca mănânce
use uses used used; o v; h benutzen benutzt benutzt / h verwenden verwendet verwendet; a utiliser utilise utilisent utilisé utiliser; folosit folosește folosesc folosi folosească
choose chooses chose chosen; o r v f; h wählen wählt gewählt; a choisir choisit choisissent choisi choisir; ales alege aleg alege aleagă
keep keeps kept kept; o r a; h behalten behält behalten; a garder garde gardent gardé garder; păstrat păstrează păstrează păstra păstreze
wash washes washed washed; v a; h waschen wäscht gewaschen; a laver lave lavent lavé laver; spălat spală spală spăla spele
admire admires admired admired; o b v; h bewundern bewundert bewundert; a admirer admire admirent admiré admirer; admirat admiră admiră admira admire
order orders ordered ordered; f r; h bestellen bestellt bestellt; a commander commande commandent commandé commander; comandat comandă comandă comanda comande
"""

VERBS_WITH_RECIPIENT = """
give gives gave given; o r f; h geben gibt gegeben; a donner donne donnent donné donner; dat dă dau da dea
show shows showed shown; o r v b; h zeigen zeigt gezeigt; a montrer montre montrent montré montrer; arătat arată arată arăta arate
send sends sent sent; o r; h schicken schickt geschickt / h senden sendet gesendet; a envoyer envoie envoient envoyé enverr; trimis trimite trimit trimite trimită
lend lends lent lent; o r v; h leihen leiht geliehen; a prêter prête prêtent prêté prêter; împrumutat împrumută împrumută împrumuta împrumute
promise promises promised promised; o v f; h versprechen verspricht versprochen; a promettre promet promettent promis promettr; promis promite promit promite promită
"""

VERBS_AT_PLACE = """
work works worked worked; b; h arbeiten arbeitet gearbeitet; a travailler travaille travaillent travaillé travailler; lucrat lucrează lucrează lucra lucreze / muncit muncește muncesc munci muncească
live lives lived lived; b; h wohnen wohnt gewohnt / h leben lebt gelebt; a habiter habite habitent habité habiter; locuit locuiește locuiesc locui locuiască
wait waits waited waited; b; h warten wartet gewartet; a attendre attend attendent attendu attendr; așteptat așteaptă așteaptă aștepta aștepte
sleep sleeps slept slept; b; h schlafen schläft geschlafen; a dormir dort dorment dormi dormir; dormit doarme dorm dormi doarmă
sing sings sang sung; b; h singen singt gesungen; a chanter chante chantent chanté chanter; cântat cântă cântă cânta cânte
dance dances danced danced; b; h tanzen tanzt getanzt; a danser danse dansent dansé danser; dansat dansează dansează dansa danseze
stay stays stayed stayed; b; s bleiben bleibt geblieben; e rester reste restent resté rester; rămas rămâne rămân rămâne rămână
laugh laughs laughed laughed; b; h lachen lacht gelacht; a rire rit rient ri rir; râs râde râd râde râdă
"""

VERBS_OF_MOTION = """
go goes went gone; g; s gehen geht gegangen; e aller va vont allé ir; mers merge merg merge meargă
come comes came come; g; s kommen kommt gekommen; e venir vient viennent venu viendr; venit vine vin veni vină
travel travels travelled travelled; g; s reisen reist gereist; a voyager voyage voyagent voyagé voyager; călătorit călătorește călătoresc călători călătorească
run runs ran run; g; s laufen läuft gelaufen / s rennen rennt gerannt; a courir court courent couru courr; alergat aleargă aleargă alerga alerge
"""

FEMALE_NAMES = (
    "Anna Maria Clara Elena Laura Sofia Julia Nora Emma Lucia Ida Rosa Irina Alice Marta Eva Helena Diana Vera Olga"
).split()
MALE_NAMES = (
    "Peter Martin Paul Victor Daniel Thomas Simon Adrian Felix Leon Oscar Hugo Marcel Robert David Jonas Anton Emil Karl Max"
).split()
FAMILY_NAMES = (
    "Keller Martin Novak Weber Moreau Ionescu Silva Berg Laurent Popa Lang Fischer Dumas Stone Marin Hale Winter Roth "
    "Bennett Carter Rossi Varga Lind Ford Petit Neagu Brook Adler Duval Moss"
).split()
CITIES = (
    "Berlin Paris Madrid Hamburg Oslo Dublin Lyon Toulouse Milano Porto Boston Chicago Toronto Sydney Bern Bonn Cluj "
    "Timisoara Nantes Krakow Riga Malaga Calais Dresden Oxford"
).split()
