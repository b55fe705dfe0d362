"""IPv4 addresses, and the numbers of four parts that are none: versions, sections, files."""

from __future__ import annotations

import pytest

from stages.pii.scrub import scrub

LEFT = [
    "Install version 2.10.0.1 of the driver.",
    "See section 4.2.1.3 of the standard.",
    "v. 3.6.3.1, V 4.2.1.9, v1.2.3.4, ver. 9.8.7.6, Version: 4.5.6.7, (version 2.3.4.5)",
    "version number is 6.1.0.12, build 14.2.1.7, release 11.2.0.4, firmware 1.2.7.15, kernel 5.4.0.12",
    "versions 5.2.1.4, 5.2.1.5 and 5.3.0.1; from version 2.9.0.1 to 2.10.0.1",
    "updated from 1.2.3.4 to 1.2.3.5, upgrade to 5.6.7.8, release notes for 8.2.0.1, patch level 5.6.7.8",
    "the 4.5.6.7 release, 2.10.0.1 firmware, 1.2.3.4-beta, 1.2.3.4-1ubuntu2",
    "foo >= 1.2.3.4, bar ~= 5.6.7.8, python==3.8.1.2",
    "§ 5.4.1.2, §§ 5.4.1.2 and 5.4.1.3, §1.2.3.4",
    "sections 3.4.5.6–3.4.5.9, Sec. 9.3.1.2, clause 8.5.1.1(a), chapter 12.1.1.3, rule 1.2.1.4, Table"
    " 2.1.1.7",
    "Figure 3.2.1.4: flow, Fig. 3.2.1.5, Annex 6.1.2.3, appendix 6.1.2.4, see 4.2.1.3 above",
    "1.1.1.1 Scope of the standard\n3.2.1.4. Requirements for doors",
    "Firefox 3.6.3.1, Skype 6.3.0.105, Adobe Reader 9.4.0.195, Java 1.8.0.201, Windows 6.1.76.0",
    "Chrome/70.0.53.77 nginx/1.14.0.2 iOS/9.3.5.1 Mozilla/5.0 (X11) Chrome/96.0.46.110 Safari",
    "LibreOffice 7.3.2.1, Zoom 5.13.4.1, ASP.NET 4.0.30.1, Adobe Flash Player 11.2.202.235",
    "libfoo-1.2.3.4.tar.gz, setup_2.10.0.1.exe, 1.2.3.4.zip, foo_3.2.1.0_amd64.deb",
    "OID 1.3.6.1, 1.3.6.1.4.1.311.21.20, 1.2.3.4.5, 2.16.840.1.113883",
    "Abschnitt 4.2.1.3, Kapitel 2.1.3.4, Abb. 5.1.2.3, Tabelle 3.1.1.2, Softwareversion 3.2.1.5, Fassung"
    " 2.4.0.1",
    "le chapitre 4.2.1.3, la section 4.2.1.3, tableau 2.1.1.3, l'article 4.1.2.3, la version 5.0.1.2",
    "la sección 3.1.2.1, capítulo 3.1.2.2, el apartado 4.2.1.3, versión: 4.1.2.3, punto 4.1.2.3",
    "sezione 3.1.2.1, versione 3.1.2.2, seção 3.1.2.3, hoofdstuk 3.1.2.4, wersja 2.4.1.0, verze 2.4.1.1",
    "Раздел 3.2.1.4, рис. 2.1.1.3, версия 2.4.1.2, バージョン 2.1.0.3, 版本 1.2.0.4, bölüm 3.2.1.4",
]

FOUND = [
    ("server at 93.184.216.34", "server at <IP>"),
    ("IP 151.101.1.69:8080, 8.8.8.8:53", "IP <IP>:8080, <IP>:53"),
    ("http://8.8.8.8/ https://1.1.1.1/dns-query", "http://<IP>/ https://<IP>/dns-query"),
    ("ssh root@93.184.216.34", "ssh root@<IP>"),
    ("https://lookup.example.com/ip/93.184.216.34", "https://lookup.example.com/ip/<IP>"),
    ("allow 93.184.216.0/24;", "allow <IP>/24;"),
    ("([93.184.216.34]) <93.184.216.34> '93.184.216.34'", "([<IP>]) <<IP>> '<IP>'"),
    ("IP-Adresse 93.184.216.34, Adresse IP : 93.184.216.34", "IP-Adresse <IP>, Adresse IP : <IP>"),
    ("host=93.184.216.34 ip.addr==93.184.216.34 ip-93.184.216.34", "host=<IP> ip.addr==<IP> ip-<IP>"),
    ("ping 1.1.1.1, DNS 8.8.8.8, nameserver 8.8.4.4", "ping <IP>, DNS <IP>, nameserver <IP>"),
    ("IP: 5.9.12.7, from 5.9.12.7, Server 5.9.12.7, at 5.9.12.7.", "IP: <IP>, from <IP>, Server <IP>, at <IP>."),
    ("IP version 4 address 64.233.160.5, IP No. 64.233.160.5", "IP version 4 address <IP>, IP No. <IP>"),
    ("rule 151.101.1.69, No: 185.199.108.153", "rule <IP>, No: <IP>"),
    ("version http://2.10.0.1/", "version http://<IP>/"),
    ("8.8.8.8 and 9.9.9.9, 5.6.7.8", "<IP> and <IP>, <IP>"),
    ("66.249.66.1 - - [12/Aug/2026:06:25:24]", "<IP> - - [12/Aug/2026:06:25:24]"),
    ("8.8.8.8 Google", "<IP> Google"),
]  # fmt: skip


@pytest.mark.parametrize("text", LEFT)
def test_a_number_that_its_surroundings_call_otherwise_is_no_address(text):
    assert scrub(text).text == text


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_an_address_is_found_whatever_stands_around_it(text, expected):
    assert scrub(text).text == expected
